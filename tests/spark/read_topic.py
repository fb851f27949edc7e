"""Reads a topic with ``format("ottla")``: run by test_registration with the full path of its Python, which is not on the PATH.

python read_topic.py BOOTSTRAP TOPIC MASTER       MASTER may be remote:local[1], for Spark Connect

Prints the counts of sessions from before the import of ``ottla.spark``, after it, and after all of these ended.
"""

import importlib
import os
import sys

from pyspark.sql import SparkSession

bootstrap, topic, master = sys.argv[1:]
remote = master.removeprefix("remote:")
connect = remote != master


def started() -> SparkSession:
    builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    return (builder.remote(remote) if connect else builder.master(master)).getOrCreate()


def count(session: SparkSession) -> int:
    return session.read.format("ottla").option("bootstrap.servers", bootstrap).option("subscribe", topic).load().count()  # type: ignore[no-any-return]


session = started()
# Spark Connect has its sessions made by the builder only.
before = [session] if connect else [session, session.newSession()]
importlib.import_module("ottla.spark")
counts = [count(one) for one in (*before, session.newSession())]
session.stop()
counts.append(count(started()))
print(counts, flush=True)
# At exit, an open session of Spark Connect would block the interpreter.
os._exit(0)
