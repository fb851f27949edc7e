"""Reads a topic with ``format("ottla")``: run by test_registration with the full path of its Python, which is not on the PATH.

python read_topic.py BOOTSTRAP TOPIC MASTER before|after|never       MASTER may be remote:local[1], for Spark Connect
"""

import importlib
import os
import sys

from pyspark.sql import SparkSession

bootstrap, topic, master, when = sys.argv[1:]


def count(session: SparkSession) -> int:
    return session.read.format("ottla").option("bootstrap.servers", bootstrap).option("subscribe", topic).load().count()  # type: ignore[no-any-return]


if when == "before":
    importlib.import_module("ottla.spark")
builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
remote = master.removeprefix("remote:")
session = (builder.remote(remote) if remote != master else builder.master(master)).getOrCreate()
others = [] if remote != master else [session.newSession()]
if when == "after":
    importlib.import_module("ottla.spark")
others.append(session.newSession())
print([count(one) for one in (session, *others)], flush=True)
# At exit, an open session of Spark Connect would block the interpreter.
os._exit(0)
