"""Settings of a session for local and cluster masters."""

import pytest

from ottla.spark.session import defaults, needs_spark_home, on_other_machines


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
    assert [needs_spark_home(master) for master in masters] == [False, False, True, False, True]
