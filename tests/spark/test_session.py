"""Settings of a session for local and cluster masters."""

import pytest

from ottla.spark.session import defaults, needs_spark_home, on_other_machines


@pytest.mark.parametrize("master", [None, "local", "local[4]", "local[*,4]", "local-cluster[2,1,1024]"])
def test_on_one_machine_everything_is_bound_to_the_loopback(master: str | None) -> None:
    settings = defaults(3, master)
    assert settings["spark.master"] == (master or "local[3]")
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.sql.shuffle.partitions"] == "3"
    assert settings["spark.python.unix.domain.socket.enabled"] == "true"


@pytest.mark.parametrize("master", ["spark://head:7077", "yarn", "k8s://https://head"])
def test_a_driver_of_a_cluster_can_be_reached_and_leaves_numbers_to_it(master: str) -> None:
    settings = defaults(3, master)
    assert settings["spark.master"] == master
    assert not settings.keys() & {"spark.driver.host", "spark.driver.bindAddress", "spark.sql.shuffle.partitions"}


def test_executors_of_a_local_cluster_are_on_this_machine_and_started_by_the_driver() -> None:
    masters = ("local", "local[*]", "local-cluster[2,1,1024]", "spark://head:7077", "yarn")
    assert [on_other_machines(master) for master in masters] == [False, False, False, True, True]
    assert [needs_spark_home(master) for master in masters] == [False, False, True, False, True]
