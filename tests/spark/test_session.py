"""Settings of a session for local and cluster masters."""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

from ottla.spark.session import defaults, driver_path, module_path, needs_spark_home, on_other_machines, tasks_python


@pytest.mark.parametrize("master", [None, "local", "local[4]", "local[*,4]", "local-cluster[2,1,1024]"])
def test_on_one_machine_all_addresses_are_loopback(master: str | None) -> None:
    settings = defaults(3, master)
    assert settings["spark.master"] == (master or "local[3]")
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.sql.shuffle.partitions"] == "3"
    assert settings["spark.python.unix.domain.socket.enabled"] == "true"


@pytest.mark.parametrize("master", ["spark://head:7077", "yarn", "k8s://https://head"])
def test_a_cluster_driver_is_reachable_and_uses_the_clusters_parallelism(master: str) -> None:
    settings = defaults(3, master)
    assert settings["spark.master"] == master
    assert not settings.keys() & {"spark.driver.host", "spark.driver.bindAddress", "spark.sql.shuffle.partitions"}


def test_executors_of_a_local_cluster_use_addresses_of_this_machine() -> None:
    masters = ("local", "local[*]", "local-cluster[2,1,1024]", "spark://head:7077", "yarn")
    assert [on_other_machines(master) for master in masters] == [False, False, False, True, True]
    assert [needs_spark_home({"spark.master": master}) for master in masters] == [False, False, True, False, True]
    assert not needs_spark_home({"spark.master": "yarn", "spark.yarn.archive": "hdfs:///jars.zip"})
    assert not needs_spark_home({"spark.master": "k8s://https://head"})


def test_tasks_of_a_cluster_run_the_python_of_the_environment_and_local_ones_this_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "python3.11")
    assert tasks_python({"spark.master": "yarn"}) == "python3.11"
    assert tasks_python({"spark.master": "yarn", "spark.pyspark.python": "/opt/python"}) == "/opt/python"
    assert tasks_python({}) == sys.executable


def test_a_driver_finds_this_interpreter_under_the_name_that_tasks_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = tmp_path / "environment"
    own.mkdir()
    for directory in (own, tmp_path):
        (directory / "python3").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(own / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("python3", path=driver_path("python3")) == str(own / "python3")
    # Names that the environment does not have, and paths, are looked up as they are.
    assert driver_path("python9") == driver_path(f"{tmp_path}/python3") == os.environ["PATH"]
    monkeypatch.setenv("PATH", driver_path("python3"))
    assert driver_path("python3") == os.environ["PATH"], "once is enough"


def test_executors_receive_the_modules_of_the_driver_and_not_its_standard_library() -> None:
    found = module_path().split(os.pathsep)
    assert sysconfig.get_path("purelib") in found
    assert str(Path(os.__file__).parent) not in found
    assert not [path for path in found if path.endswith(("lib-dynload", ".zip"))]
