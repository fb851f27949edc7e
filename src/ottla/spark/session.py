"""A local Spark session with fast start, no terminal output and clean stop.

Spark's defaults suit a cluster of long-lived machines. On one machine they are slow: 200 shuffle partitions turn a small aggregate into
200 tasks, the default checkpoint files double the time of a small micro-batch, the web UI takes a port. The settings here suit one machine
and a pipeline. The caller can override each.

With a cluster's master the session is its driver: nothing is bound to the loopback address, since executors must reach the driver, and the
cluster sets the numbers of cores and partitions. The Python that runs tasks is PYSPARK_PYTHON, else this interpreter's path. Spark starts
it by the same name on the driver's machine, to plan. A name without a directory, such as python3.11, is this interpreter there, if its
directory has that name.

Spark's output (log4j, launcher warnings, the JVM's standard error with that of the Python workers) goes to one file. The JVM runs in its
own POSIX session, so Ctrl-C reaches only this process, which stops the JVM in order. The JVM ends with this process, because its standard
input is a pipe from it.
"""

import logging
import os
import re
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from glob import glob
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
#: Where YARN has Spark's jars.
YARN_JARS = {"spark.yarn.archive", "spark.yarn.jars"}
#: Disables Arrow's bounds checks: 10 % less time per row. Spark does not read outside of a column.
ARROW_UNCHECKED = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"


def on_other_machines(master: str) -> bool:
    """Whether executors may run on other machines, which cannot reach a loopback address and have their own number of cores."""
    return not master.startswith("local")


def needs_spark_home(settings: Mapping[str, str]) -> bool:
    """Whether the driver's JVM starts executors (local-cluster) or sends them its jars (YARN, unless a setting names others)."""
    master = settings.get("spark.master", "local")
    return master.startswith("local-cluster") or (master == "yarn" and not settings.keys() & YARN_JARS)


def defaults(cores: int, master: str | None = None) -> dict[str, str]:
    """The settings of a session on one machine, or of a driver for the cluster `master`."""
    local = {
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.sql.shuffle.partitions": str(cores),
        # Unix domain sockets copy rows between the JVM and Python less often than loopback TCP.
        "spark.python.unix.domain.socket.enabled": str(os.name == "posix").lower(),
    }
    return {
        "spark.master": master or f"local[{cores}]",
        **({} if master and on_other_machines(master) else local),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILES,
        # Limits the wait for the last batch of a stopped query. An unfinished batch runs again at the next start.
        "spark.sql.streaming.stopTimeout": "30s",
        # Reused workers keep their broker connections between batches.
        "spark.python.worker.reuse": "true",
        # On a busy machine a Python process may take longer than Spark's default of 15 s to answer, which ends the query.
        "spark.python.authenticate.socketTimeout": "60s",
        # Persisted batches are blocks of 4 MiB. By default Java's serializer holds references to a hundred of them.
        "spark.serializer.objectStreamReset": "1",
        "spark.log.structuredLogging.enabled": "false",
    }


def tasks_python(settings: Mapping[str, str]) -> str:
    """The Python of tasks, a path or a name to look up in the PATH of each machine."""
    on_cluster = on_other_machines(settings.get("spark.master", "local"))
    return settings.get("spark.pyspark.python") or (os.environ.get("PYSPARK_PYTHON") if on_cluster else None) or sys.executable


def module_path() -> str:
    """The PYTHONPATH of Python processes: this process's, without the standard library.

    YARN hands it to executors, whose Python may be another build with a library of its own.
    """
    library = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    library |= {f"{directory}/lib-dynload" for directory in library}
    found = [path for path in sys.path if path and path not in library and not re.fullmatch(r"python\d+\.zip", Path(path).name)]
    return os.pathsep.join(dict.fromkeys([*found, *filter(None, [os.environ.get("PYTHONPATH")])]))


def driver_path(python: str) -> str:
    """The PATH of a cluster's driver: `python`, if it is a name, is this interpreter, if its directory has the name."""
    path, own = os.environ.get("PATH", os.defpath), Path(sys.executable).parent
    if os.sep in python or not (own / python).exists() or path.split(os.pathsep)[0] == str(own):
        return path
    return f"{own}{os.pathsep}{path}"


def start_session(name: str, settings: Mapping[str, str] | None = None, *, log_file: Path | None = None, cores: int | None = None) -> Any:
    """A new SparkSession, with Spark's output in `log_file` (discarded without one).

    Spark's Python processes run this interpreter with this process's module path; on a cluster, PYSPARK_PYTHON if set.

    Raises: NoJava.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.find_spark_home import _find_spark_home
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    for noisy in ("py4j", "SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        # Their messages are duplicates of raised errors.
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    home = java_home()
    chosen = dict(settings or {})
    master = chosen.get("spark.master", "local")
    on_cluster = on_other_machines(master)
    os.environ["PYSPARK_PYTHON"] = tasks_python(chosen)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if on_cluster:
        # Executors run sources and sinks with the driver's Python (PythonUtils.defaultPythonExec), other functions with the other one.
        os.environ["PYSPARK_DRIVER_PYTHON"] = os.environ["PYSPARK_PYTHON"]
        os.environ["PATH"] = driver_path(os.environ["PYSPARK_PYTHON"])
        # YARN sends these to executors; otherwise it looks for them in SPARK_HOME, which the JVM may not have.
        os.environ.setdefault("PYSPARK_ARCHIVES_PATH", ",".join(sorted(glob(f"{_find_spark_home()}/python/lib/*.zip"))))
    else:
        os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    os.environ["PYTHONPATH"] = module_path()
    conf = SparkConf(loadDefaults=False)
    conf.setAll(list({**defaults(cores or os.cpu_count() or 1, chosen.get("spark.master")), **chosen}.items()))
    conf.setAppName(name)
    with tempfile.TemporaryDirectory(prefix="ottla-spark-") as directory:
        log4j = Path(directory) / "log4j2.properties"
        log4j.write_text(LOG4J)
        options = conf.get("spark.driver.extraJavaOptions", "")
        unchecked = "" if on_cluster else ARROW_UNCHECKED
        conf.set("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={log4j} {unchecked} {options}".strip())
        os.environ["JAVA_HOME"] = str(launcher_home(home, Path(directory) / "java", installed_pyspark=not needs_spark_home(chosen)))
        with Path(log_file or os.devnull).open("ab") as log:
            gateway = launch_gateway(conf, popen_kwargs={"stdout": log, "stderr": log, "start_new_session": True})
        os.environ["JAVA_HOME"] = str(home)
        context = SparkContext(gateway=gateway, conf=conf)
    return SparkSession(context)
