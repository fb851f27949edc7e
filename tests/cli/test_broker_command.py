"""`ottla broker`, and `ottla cluster describe`."""

from __future__ import annotations

import pytest
from fake_admin import FakeAdmin

from commands import Ottla, documents, good, refused, rows, without_headings


def squeezed(text: str) -> list[str]:
    """Lines with runs of spaces collapsed."""
    return [" ".join(line.split()) for line in text.splitlines()]


def test_brokers_are_listed_with_their_replicas_and_sizes(cluster: FakeAdmin, ottla: Ottla) -> None:
    cluster.topic("behind", isr=[1])
    assert rows(ottla("broker", "list")) == "1\tone:9092\ta\t\n2\ttwo:9092\t\tcontroller\n"
    assert rows(ottla("broker", "list", "-o", "wide")) == "1\tone:9092\ta\t\t7\t7\t0\t0\n2\ttwo:9092\t\tcontroller\t0\t7\t1\t0\n"
    report = documents(ottla("broker", "list", "-o", "json"), "broker", "list")
    assert (report[1]["controller"], report[1]["not_in_sync"]) == (True, 1)


def test_a_broker_is_described_with_its_directories_and_settings(cluster: FakeAdmin, ottla: Ottla) -> None:
    good(ottla("config", "set", "broker", "2", "num.io.threads=16"))
    (report,) = documents(ottla("broker", "describe", "2", "-o", "json"), "broker", "describe")
    assert report["configs"] == {"num.io.threads": "16"}
    assert [(one["path"], one["replica_count"], one["used_bytes"]) for one in report["log_dirs"]] == [("/a", 6, 6000), ("/b", 0, 0)]
    assert "2\tlog directory\t/b: it failed" in good(ottla("broker", "describe", "2"))
    assert len(documents(ottla("broker", "describe", "-o", "json"), "broker", "describe")) == 2


@pytest.mark.usefixtures("terminal")
def test_a_terminal_gets_readable_sizes_and_a_broker_as_a_list(cluster: FakeAdmin, ottla: Ottla) -> None:
    output = squeezed(good(ottla("broker", "describe", "1")))
    assert output[:4] == ["broker 1", "address one:9092", "rack a", "leads 6 partitions"]
    assert "1 /a 0 0 B 512 GiB 1.0 TiB online" in squeezed(good(ottla("broker", "log-dirs", "1")))


def test_an_offline_directory_sets_the_exit_code(cluster: FakeAdmin, ottla: Ottla) -> None:
    result = ottla("broker", "log-dirs")
    assert result.exit_code == 1
    assert without_headings(result.stdout).splitlines()[2] == "2\t/b\t0\t0\t\t\tit failed"
    assert rows(ottla("broker", "log-dirs", "1")) == "1\t/a\t0\t0\t549755813888\t1099511627776\tonline\n"


def test_replicas_in_directories_are_listed_on_request(cluster: FakeAdmin, ottla: Ottla) -> None:
    lines = ottla("broker", "log-dirs", "2", "--replicas", "-t", "orders").stdout.splitlines()
    assert "2\t/a\torders\t0\t1000\t0\t" in lines
    report = documents(ottla("broker", "log-dirs", "2", "-o", "json"), "broker", "log-dirs", code=1)
    assert report[0]["replicas"][2] == {"topic": "orders", "partition": 0, "size_bytes": 1000, "offset_lag": 0, "is_future": False}


@pytest.mark.parametrize("arguments", [["describe", "7"], ["log-dirs", "7"], ["config", "7"]])
def test_a_missing_broker_is_reported_with_the_existing_ones(cluster: FakeAdmin, ottla: Ottla, arguments: list[str]) -> None:
    assert "broker 7 does not exist or is down; brokers are 1, 2" in refused(ottla("broker", *arguments))


# -- the cluster


def test_a_cluster_is_described_with_totals(cluster: FakeAdmin, ottla: Ottla) -> None:
    cluster.topic("behind", isr=[1])
    report = documents(ottla("cluster", "describe", "-o", "json"), "cluster", "describe")
    expected = {
        "cluster_id": "fake",
        "controller": 2,
        "topics": 3,
        "internal_topics": 1,
        "partitions": 7,
        "replicas": 14,
        "under_replicated": 1,
    }
    assert {name: report[name] for name in expected} == expected
    assert "under replicated\t1" in good(ottla("cluster", "describe"))


def test_feature_levels_are_raised_and_lowered(cluster: FakeAdmin, ottla: Ottla) -> None:
    assert good(ottla("cluster", "features-update", "--latest", "--dry-run")) == "ottla.version\t1 to 2\n"
    assert cluster.feature_updates.pop() == ({"ottla.version": 2}, {"downgrade": False, "unsafe": False, "validate_only": True})
    assert "Brokers of an older version cannot join" in refused(ottla("cluster", "features-update", "ottla.version=2"), 2)
    assert cluster.feature_updates == []
    assert good(ottla("cluster", "features-update", "ottla.version=2", "--yes")) == "ottla.version\t1 to 2\n"
    assert good(ottla("cluster", "features-update", "metadata.version=24", "--downgrade")) == "metadata.version\t25 to 24\n"
    assert cluster.feature_updates[-1] == ({"metadata.version": 24}, {"downgrade": True, "unsafe": False, "validate_only": False})
    assert good(ottla("cluster", "features-update", "metadata.version=25")) == ""
    assert len(cluster.feature_updates) == 2
    for wrong in (("metadata.version",), ("metadata.version=x",), (), ("--latest", "a=1")):
        assert "expected" in refused(ottla("cluster", "features-update", *wrong), 2)


def test_apis_features_and_the_quorum_are_reported(cluster: FakeAdmin, ottla: Ottla) -> None:
    assert rows(ottla("cluster", "apis")) == "0\tProduce\t3-11\t3-13\t11\n99\t\t0-1\t\t\n"
    documents(ottla("cluster", "apis", "-o", "json"), "cluster", "apis")
    assert rows(ottla("cluster", "features")) == "metadata.version\t1-25\t25-25\nottla.version\t1-2\t1-1\n"
    documents(ottla("cluster", "features", "-o", "json"), "cluster", "features")
    report = documents(ottla("cluster", "quorum", "-o", "json"), "cluster", "quorum")
    assert [(one["node"], one["role"], one["lag"]) for one in report["replicas"]] == [
        (1, "voter", 10),
        (2, "leader", 0),
        (9, "observer", 50),
    ]
