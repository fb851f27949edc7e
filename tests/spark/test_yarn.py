"""Spark on YARN: a pipeline and jobs on Hadoop's own daemons, each a process here (chaos/yarn.py has what to install).

The executors have a Python without this environment; Ottla reaches them as an archive.
"""

import json
import os
import signal
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from chaos.yarn import JARS, YarnCluster, cluster

import ottla
from ottla.spark.java import java_home
from ottla.testing import broker

from .cluster_run import PASSWORD, USER, ClusterRun, Exposed, files_with_password, java_processes, run_job, send_packages

pytestmark = [
    pytest.mark.spark, pytest.mark.server, pytest.mark.long, pytest.mark.xdist_group("spark_processes"), pytest.mark.timeout(1800),
    pytest.mark.skipif(JARS not in os.environ, reason=f"{JARS} names no directory with the jars of Hadoop"),
]  # fmt: skip

HOME = Path(str(pyspark.__file__)).parent
OTHERS = sysconfig.get_path("platlib")
PYTHON = getattr(sys, "_base_executable", sys.executable)
SETTINGS = {
    "archives": "hdfs:///packages.tar#packages",
    "executorEnv.PYTHONPATH": os.pathsep.join(["packages", OTHERS]),
    "yarn.archive": "hdfs:///spark-jars.zip",
    "driver.host": "127.0.0.1",
    "executor.memory": "1g",
    "executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "sql.shuffle.partitions": "2",
}


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[YarnCluster]:
    """A cluster with two nodes; HDFS has Spark's jars and the archive."""
    directory = tmp_path_factory.mktemp("hadoop")
    with zipfile.ZipFile(directory / "spark-jars.zip", "w") as jars:
        for jar in (HOME / "jars").glob("*.jar"):
            jars.write(jar, jar.name)
    send_packages(directory / "packages.tar")
    with cluster(directory, Path(os.environ[JARS])) as started:
        for name in ("spark-jars.zip", "packages.tar"):
            started.put(directory / name, f"/{name}")
        yield started


def test_a_pipeline_is_exact_when_an_executor_and_the_application_master_are_killed(yarn: YarnCluster, tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    spark = {**SETTINGS, "master": "yarn", "executor.instances": "2", "eventLog.enabled": "true", "eventLog.dir": f"file://{events}"}
    environment = {"HADOOP_CONF_DIR": str(yarn.configuration), "PYSPARK_PYTHON": PYTHON}
    with (
        broker(users={USER: PASSWORD}, settings={"transaction.two.phase.commit.enable": "true"}) as brokers,
        ClusterRun(brokers, tmp_path, "hdfs:///checkpoint", spark, environment) as run,
        Exposed() as exposed,
    ):
        run.work()
        os.kill(java_processes("YarnCoarseGrainedExecutorBackend")[0], signal.SIGKILL)
        run.work()
        os.kill(java_processes("deploy.yarn.ExecutorLauncher")[0], signal.SIGKILL)
        run.work()
        run.finish()
        run.check()
    assert exposed.found == set()
    assert list(events.iterdir())
    # Launch scripts, tokens, configuration and logs of the containers; what is left in HDFS; the event log.
    assert files_with_password(yarn.nodes, yarn.configuration.parent / "data", events) == []


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_a_job_finds_the_package_in_its_archive(yarn: YarnCluster, mode: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "PYTHON"))}
    environment |= {"SPARK_HOME": str(HOME), "JAVA_HOME": str(java_home()), "HADOOP_CONF_DIR": str(yarn.configuration)}
    environment |= {"PYSPARK_PYTHON": PYTHON, "PYTHONPATH": os.pathsep.join([str(Path(str(ottla.__file__)).parents[1]), OTHERS])}
    settings = dict(SETTINGS)
    if mode == "cluster":
        # The driver is in a container of the cluster.
        del settings["driver.host"], environment["PYTHONPATH"], environment["PYSPARK_PYTHON"]
        settings |= {"yarn.appMasterEnv.PYTHONPATH": settings["executorEnv.PYTHONPATH"], "yarn.appMasterEnv.PYSPARK_PYTHON": PYTHON}
    submit = [str(HOME / "bin" / "spark-submit"), "--master", "yarn", "--deploy-mode", mode, "--num-executors", "1"]
    submit += [part for name, value in settings.items() for part in ("--conf", f"spark.{name}={value}")]
    printed = run_job(submit, environment, tmp_path)
    if mode == "client":
        reported = json.loads(printed.splitlines()[-1])
        assert reported["count"] == 60
        assert reported["where"][0].split(os.sep)[-3:] == ["packages", "ottla", "__init__.py"], "it was sent with the job"
