"""A local Spark session that starts fast, stays quiet and stops when told.

Spark's defaults are made for a cluster of long-lived machines. On one machine they cost: 200 shuffle partitions turn a small aggregate into
200 tasks, the default checkpoint files take twice the time of a small micro-batch, the web UI takes a port. The settings here are for one
machine and a pipeline; each can be overridden by the caller.

With the master of a cluster the session is its driver: nothing is bound to this machine's loopback, since executors must reach it, and the
numbers of cores and partitions are the cluster's own affair. What must be the same everywhere is the Python that runs tasks:
PYSPARK_PYTHON names it, and without that it is this interpreter's path, on every machine.

Spark's own words (log4j, launcher warnings, the JVM's standard error, which carries those of the Python workers) go to one file, which an
error message can name; the terminal belongs to the program. The JVM runs in a session of its own, so that Ctrl-C reaches us alone and we
stop it in order. It ends with us: its standard input is a pipe that we hold.
"""

import logging
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ottla.spark.java import java_home, launcher_home

#: Spark's other checkpoint writer: half the cost of a micro-batch (104 against 173 ms for ten rows). Needs atomic rename.
CHECKPOINT_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

LOG4J = """status = error
appenders = out
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1}: %m%n%ex
rootLogger.level = error
rootLogger.appenderRef.out.ref = out
"""


LOOPBACK = "127.0.0.1"
#: A row costs the JVM a tenth less when Arrow does not check each access to a column; Spark reads inside of what it has read.
ARROW_UNCHECKED = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"


def on_other_machines(master: str) -> bool:
    """Whether executors may be on other machines, which cannot reach a loopback address and know best how many cores they have."""
    return not master.startswith("local")


def needs_spark_home(master: str) -> bool:
    """Whether the driver's JVM itself starts executors, or sends them Spark's jars, and so must know where Spark is: neither a session
    whose tasks run in that JVM nor the driver of a standalone cluster.
    """
    return master != "local" and not master.startswith(("local[", "spark://"))


def defaults(cores: int, master: str | None = None) -> dict[str, str]:
    """The settings of a session on one machine, or of a driver of the cluster that `master` names."""
    here = {
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.sql.shuffle.partitions": str(cores),
        # Rows go to and from Python by a path of fewer copies than loopback TCP.
        "spark.python.unix.domain.socket.enabled": str(os.name == "posix").lower(),
    }
    return {
        "spark.master": master or f"local[{cores}]",
        **({} if master and on_other_machines(master) else here),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILES,
        # A stopped query must not wait for its last batch for ever; it is run again at the next start.
        "spark.sql.streaming.stopTimeout": "30s",
        # Idle workers keep their connections to the brokers between batches.
        "spark.python.worker.reuse": "true",
        # On a machine that has much to do a Python process may take longer than Spark's 15 s to answer; the query would end.
        "spark.python.authenticate.socketTimeout": "60s",
        # What several sinks share is kept in pieces of 4 MiB; written to disk, Java would hold on to a hundred of them.
        "spark.serializer.objectStreamReset": "1",
        "spark.log.structuredLogging.enabled": "false",
    }


def start_session(name: str, settings: Mapping[str, str] | None = None, *, log_file: Path | None = None, cores: int | None = None) -> Any:
    """A new SparkSession, with Spark's own output in `log_file` (nowhere without one).

    Python processes of Spark run this interpreter with this process's module path; on a cluster, what PYSPARK_PYTHON names if set.

    Raises: NoJava.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    for noisy in ("py4j", "SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        # What they print is raised as well, and told there.
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    home = java_home()
    chosen = dict(settings or {})
    master = chosen.get("spark.master", "local")
    elsewhere = on_other_machines(master)
    tasks_python = os.environ.get("PYSPARK_PYTHON") if elsewhere else None
    os.environ["PYSPARK_PYTHON"] = chosen.get("spark.pyspark.python") or tasks_python or sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if not elsewhere:
        os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*filter(None, sys.path), *filter(None, [os.environ.get("PYTHONPATH")])]))
    conf = SparkConf(loadDefaults=False)
    conf.setAll(list({**defaults(cores or os.cpu_count() or 1, chosen.get("spark.master")), **chosen}.items()))
    conf.setAppName(name)
    with tempfile.TemporaryDirectory(prefix="ottla-spark-") as directory:
        log4j = Path(directory) / "log4j2.properties"
        log4j.write_text(LOG4J)
        options = conf.get("spark.driver.extraJavaOptions", "")
        unchecked = "" if elsewhere else ARROW_UNCHECKED
        conf.set("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={log4j} {unchecked} {options}".strip())
        os.environ["JAVA_HOME"] = str(launcher_home(home, Path(directory) / "java", installed_pyspark=not needs_spark_home(master)))
        with Path(log_file or os.devnull).open("ab") as log:
            gateway = launch_gateway(conf, popen_kwargs={"stdout": log, "stderr": log, "start_new_session": True})
        os.environ["JAVA_HOME"] = str(home)
        context = SparkContext(gateway=gateway, conf=conf)
    return SparkSession(context)
