"""`ottla topic`: output, changes, confirmations and refusals."""

from __future__ import annotations

import json
import time

import pytest
import yaml
from fake_admin import FakeAdmin

from commands import Ottla, documents, good, refused, rows
from ottla.client.admin.results import LogDir, PartitionDescription, ReplicaLog, Resource
from ottla.wire.errors import ClusterAuthorizationFailed

ORDERS = Resource.topic("orders")


def squeezed(text: str) -> list[str]:
    """Lines with runs of spaces collapsed."""
    return [" ".join(line.split()) for line in text.splitlines()]


# -- listing and describing


def test_topics_are_listed_by_name_with_internal_ones_on_request(cluster: FakeAdmin, ottla: Ottla) -> None:
    assert rows(ottla("topic", "list")) == "orders\t3\t2\t30\t\t0.0\npayments\t1\t2\t10\t\t0.0\n"
    assert rows(ottla("topic", "list", "--internal")).startswith("__consumer_offsets\t2\t2\t20\t\t0.0\norders")
    assert rows(ottla("topic", "list", "o*", "x*")) == "orders\t3\t2\t30\t\t0.0\n"
    assert good(ottla("topic", "list", "-o", "wide", "--headers")).splitlines()[0] == (
        "NAME\tPARTITIONS\tREPLICAS\tRECORDS\tSIZE\tWRITTEN/S\tID\tINTERNAL"
    )


def test_json_and_yaml_have_the_same_content(cluster: FakeAdmin, ottla: Ottla) -> None:
    report = documents(ottla("topic", "list", "-o", "json"), "topic", "list")
    figures = {"records": 30, "bytes": None, "written_per_s": 0.0}
    assert report[0] == {"name": "orders", "topic_id": report[0]["topic_id"], "partitions": 3, "replicas": 2, "internal": False, **figures}
    assert yaml.safe_load(good(ottla("topic", "list", "-o", "yaml"))) == report


def test_the_rate_of_a_topic_is_that_of_the_last_minute_by_timestamps(cluster: FakeAdmin, ottla: Ottla) -> None:
    # Record n of the fake cluster has the timestamp n seconds.
    now_s = int(time.time())
    cluster.logs["payments", 0] = [now_s - 500, now_s + 1]
    (report,) = documents(ottla("topic", "list", "payments", "-o", "json"), "topic", "list")
    assert 0.9 <= report["written_per_s"] <= 1.1
    assert report["records"] == 501


def test_the_size_of_a_topic_is_that_of_the_logs_of_its_leaders(cluster: FakeAdmin, ottla: Ottla, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.topics["orders"][2] = PartitionDescription(2, 2, 0, [2, 1], [1, 2], [])
    logs = {1: [ReplicaLog("orders", number, 10**number, 0, False) for number in (0, 1, 2)], 2: [ReplicaLog("orders", 2, 7, 0, False)]}
    logs[1].append(ReplicaLog("orders", 0, 5000, 0, True))
    monkeypatch.setattr(
        cluster, "describe_log_dirs", lambda brokers: {broker: [LogDir("/a", None, -1, -1, logs[broker])] for broker in brokers}
    )
    (report,) = documents(ottla("topic", "list", "orders", "-o", "json"), "topic", "list")
    assert report["bytes"] == 1 + 10 + 7


def test_figures_that_a_broker_does_not_report_are_unknown(cluster: FakeAdmin, ottla: Ottla, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.topics["orders"][1] = PartitionDescription(1, -1, 0, [1, 2], [], [])
    refusal = ClusterAuthorizationFailed("no permission to Describe the cluster")
    monkeypatch.setattr(cluster, "describe_log_dirs", lambda brokers: dict.fromkeys(brokers, refusal))
    result = ottla("topic", "list")
    assert rows(result) == "orders\t3\t2\t\t\t\npayments\t1\t2\t10\t\t0.0\n"
    assert "broker 1 does not report sizes: no permission to Describe the cluster" in result.stderr
    without = ottla("topic", "list", "--no-figures")
    assert (rows(without), without.stderr) == ("orders\t3\t2\npayments\t1\t2\n", "")


def test_a_topic_is_described_with_partitions_offsets_and_settings(cluster: FakeAdmin, ottla: Ottla) -> None:
    cluster.set[ORDERS] = {"retention.ms": "1000"}
    cluster.logs["orders", 1] = [3, 12]
    (report,) = documents(ottla("topic", "describe", "orders", "-o", "json"), "topic", "describe")
    assert report["configs"] == {"retention.ms": "1000"}
    expected = {"partition": 1, "leader": 1, "leader_epoch": 0, "replicas": [1, 2], "isr": [1, 2], "offline": []}
    assert report["partitions"][1] == {**expected, "start_offset": 3, "end_offset": 12}
    assert rows(ottla("topic", "describe", "orders")).splitlines()[1:] == [
        "orders\t1\t1\t0\t1,2\t1,2\t3\t12", "orders\t2\t1\t0\t1,2\t1,2\t0\t10", "orders\tretention.ms\t1000",
    ]  # fmt: skip
    assert set(documents(ottla("topic", "describe", "orders", "--all-configs", "-o", "json"), "topic", "describe")[0]["configs"]) > {
        "segment.bytes"
    }


@pytest.mark.usefixtures("terminal")
def test_a_terminal_gets_a_table_with_a_title(cluster: FakeAdmin, ottla: Ottla) -> None:
    output = squeezed(good(ottla("topic", "describe", "payments", "orders")))
    assert output[0].startswith("payments ")
    assert output[1:4] == ["PARTITION LEADER LEADER-EPOCH REPLICAS ISR LOG-START-OFFSET LOG-END-OFFSET", "0 1 0 1,2 1,2 0 10", ""]
    assert "NAME" not in good(ottla("topic", "list", "--no-headers"))


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "list"],
        ["topic", "list", "-o", "wide"],
        ["topic", "describe", "NAME"],
        ["topic", "partitions", "NAME"],
        ["topic", "offsets", "NAME"],
        ["topic", "producers", "NAME"],
        ["topic", "delete", "NAME", "--dry-run"],
        ["topic", "records-delete", "NAME", "--before-offset", "5", "--dry-run"],
        ["topic", "alter", "NAME", "-p", "3", "--dry-run"],
        ["config", "set", "topic", "NAME", "retention.ms=1", "--dry-run"],
    ],
)
def test_a_long_name_is_on_one_line_of_80_columns(cluster: FakeAdmin, ottla: Ottla, arguments: list[str]) -> None:
    name = "orders.of.the.eastern.and.the.western.hemisphere.by.hour"
    cluster.topic(name, 2)
    shown = good(ottla(*(name if one == "NAME" else one for one in arguments)))
    assert name in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ["describe", "order"],
        ["alter", "order", "-p", "9"],
        ["delete", "order", "-y"],
        ["delete", "order", "--dry-run"],
        ["partitions", "order"],
        ["offsets", "order"],
        ["producers", "order"],
        ["records-delete", "order", "--all-records"],
        ["create", "new", "--like", "order"],
    ],
)
def test_a_missing_topic_suggests_a_similar_name(cluster: FakeAdmin, ottla: Ottla, arguments: list[str]) -> None:
    assert "topic order does not exist; did you mean orders?" in refused(ottla("topic", *arguments))
    assert "order" not in cluster.topics


def test_partitions_are_selected_by_their_problem(cluster: FakeAdmin, ottla: Ottla) -> None:
    cluster.topic("behind", isr=[1])
    cluster.topic("headless", isr=[])
    cluster.topics["headless"][0] = PartitionDescription(0, -1, 0, [1, 2], [], [1, 2])
    cluster.set[Resource.topic("behind")] = {"min.insync.replicas": "2"}

    def found(*arguments: str) -> list[str]:
        report = documents(ottla("topic", "partitions", *arguments, "-o", "json"), "topic", "partitions")
        return sorted({one["topic"] for one in report})

    assert found() == ["__consumer_offsets", "behind", "headless", "orders", "payments"]
    assert found("--under-replicated") == ["behind", "headless"]
    assert found("--under-min-isr") == ["behind", "headless"]
    assert found("--at-min-isr") == []
    assert found("--offline") == found("--not-preferred") == ["headless"]
    assert found("--broker", "3") == []
    assert found("orders:0-1") == ["orders"]
    assert rows(ottla("topic", "partitions", "headless")) == "headless\t0\tnone\t1,2\t\t1,2\n"


def test_partitions_without_a_leader_do_not_delay_the_command(cluster: FakeAdmin, ottla: Ottla) -> None:
    cluster.topic("headless", 2)
    cluster.topics["headless"][1] = PartitionDescription(1, -1, 0, [1, 2], [], [1, 2])
    del cluster.logs["headless", 1]
    assert rows(ottla("topic", "offsets", "headless", "--at", "0")).splitlines()[1] == "headless\t1\t\t\t\t\t"
    assert rows(ottla("topic", "describe", "headless")).splitlines()[1] == "headless\t1\tnone\t0\t1,2\t\t\t"
    assert rows(ottla("topic", "delete", "headless", "--dry-run")) == "headless\twould be deleted\t2\t\n"
    assert "headless-1 has no leader" in refused(ottla("topic", "records-delete", "headless", "--all-records", "-y"))


def test_offsets_are_listed_with_those_of_a_timestamp(cluster: FakeAdmin, ottla: Ottla) -> None:
    assert rows(ottla("topic", "offsets", "orders:1")) == "orders\t1\t0\t10\t10\n"
    report = documents(ottla("topic", "offsets", "orders:1", "payments", "--at", "3500", "-o", "json"), "topic", "offsets")
    assert report[0] == {
        "topic": "orders", "partition": 1, "start_offset": 0, "end_offset": 10, "records": 10, "offset": 4, "timestamp_ms": 4000,
    }  # fmt: skip
    assert documents(ottla("topic", "offsets", "payments", "--at", "newest", "-o", "json"), "topic", "offsets")[0]["offset"] == 9
    assert documents(ottla("topic", "offsets", "payments", "--at", "-1h", "-o", "json"), "topic", "offsets")[0]["offset"] is None
    assert "--at expects" in refused(ottla("topic", "offsets", "payments", "--at", "soon"), 2)
    assert "topic payments has 1 partitions; partition 4 does not exist" in refused(ottla("topic", "offsets", "payments:4"))


def test_producers_are_listed_by_partition(cluster: FakeAdmin, ottla: Ottla) -> None:
    (report,) = documents(ottla("topic", "producers", "payments", "-o", "json"), "topic", "producers")
    assert (report["producer_id"], report["transaction_start_offset"], report["coordinator_epoch"]) == (7, 5, None)


# -- changing


def test_topics_are_created_and_failures_reported_separately(cluster: FakeAdmin, ottla: Ottla) -> None:
    result = ottla("topic", "create", "a", "orders", "-p", "4", "-c", "retention.ms=7d", "-c", "segment.bytes=64MiB")
    assert result.stdout == "a\tcreated\n"
    assert "Error: orders: it already exists" in refused(result)
    assert cluster.set[Resource.topic("a")] == {"retention.ms": "604800000", "segment.bytes": "67108864"}
    assert good(ottla("topic", "create", "orders", "--if-not-exists")) == "orders\texists\n"
    report = documents(ottla("topic", "create", "orders", "b", "-o", "json"), "topic", "create", code=1)
    assert report[0]["error"]["code"] == 36
    assert report[1] == {"name": "b", "outcome": "created", "error": None}


def test_a_topic_is_created_like_another_one(cluster: FakeAdmin, ottla: Ottla) -> None:
    cluster.set[ORDERS] = {"cleanup.policy": "compact", "retention.ms": "5"}
    good(ottla("topic", "create", "orders.2", "--like", "orders", "-c", "retention.ms=6"))
    assert len(cluster.topics["orders.2"]) == 3
    assert cluster.set[Resource.topic("orders.2")] == {"cleanup.policy": "compact", "retention.ms": "6"}


def test_dry_runs_change_nothing_and_are_validated(cluster: FakeAdmin, ottla: Ottla) -> None:
    result = ottla("topic", "create", "a", "--dry-run")
    assert good(result) == "a\twould be created\n"
    assert "already exists" in refused(ottla("topic", "create", "orders", "--dry-run"))
    result = ottla("topic", "alter", "orders", "-p", "5", "-c", "retention.ms=1", "--dry-run")
    assert rows(result) == "orders\tpartitions\t3\t5\twould be set\norders\tretention.ms\t604800000\t1\twould be set\n"
    assert "Nothing was changed." in result.stderr
    assert "only grow" in refused(ottla("topic", "alter", "orders", "-p", "2", "--dry-run"))
    assert "a" not in cluster.topics
    assert len(cluster.topics["orders"]) == 3
    assert ORDERS not in cluster.set


def test_a_change_is_reported_with_the_old_value(cluster: FakeAdmin, ottla: Ottla) -> None:
    cluster.set[ORDERS] = {"retention.ms": "5"}
    report = documents(
        ottla("topic", "alter", "orders", "-p", "4", "-c", "cleanup.policy=compact", "-d", "retention.ms", "-o", "json"), "topic", "alter"
    )
    assert [(one["setting"], one["before"], one["after"], one["outcome"]) for one in report] == [
        ("partitions", "3", "4", "set"), ("cleanup.policy", "delete", "compact", "set"), ("retention.ms", "5", "604800000", "deleted"),
    ]  # fmt: skip
    assert "nothing to change" in refused(ottla("topic", "alter", "orders"), 2)


# -- deleting


def test_topics_are_not_deleted_before_confirmation(cluster: FakeAdmin, ottla: Ottla) -> None:
    message = refused(ottla("topic", "delete", "orders", "payments"), 2)
    assert "2 topics would be deleted with all records" in message
    assert "--yes" in message
    assert not cluster.calls
    assert good(ottla("topic", "delete", "orders", "payments", "-y")) == "orders\tdeleted\npayments\tdeleted\n"
    assert good(ottla("topic", "delete", "orders", "-y", "--if-exists")) == "orders\tnot there\n"


def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.cli.common.confirmation.is_interactive", lambda: True)


def test_a_terminal_gets_the_plan_and_a_confirmation_prompt(monkeypatch: pytest.MonkeyPatch, cluster: FakeAdmin, ottla: Ottla) -> None:
    on_a_terminal(monkeypatch)
    result = ottla("topic", "delete", "orders", input="n\n")
    assert "orders: 3 partitions, 30 records" in result.stderr
    assert result.exit_code == 1
    assert not cluster.calls
    assert "orders\tdeleted" in good(ottla("topic", "delete", "orders", input="y\n"))


def test_a_dry_run_reports_how_much_would_be_deleted(cluster: FakeAdmin, ottla: Ottla) -> None:
    result = ottla("topic", "delete", "orders", "order", "--dry-run", "-o", "json")
    report = documents(result, "topic", "delete", code=1)
    assert report[0] == {"name": "orders", "outcome": "would be deleted", "error": None, "partitions": 3, "records": 30}
    assert report[1]["error"]["code"] == 3
    assert rows(ottla("topic", "delete", "order", "--if-exists", "--dry-run")) == "order\tnot there\t\t\n"
    assert not cluster.calls


def test_patterns_delete_only_matching_topics_and_never_internal_ones(cluster: FakeAdmin, ottla: Ottla) -> None:
    assert (
        rows(ottla("topic", "delete", "*", "--match", "--dry-run"))
        == "orders\twould be deleted\t3\t30\npayments\twould be deleted\t1\t10\n"
    )
    assert "no topic matches test-*" in refused(ottla("topic", "delete", "test-*", "--match", "-y"))
    assert "topic * does not exist" in refused(ottla("topic", "delete", "*", "-y"))


@pytest.mark.parametrize(
    ("where", "starts"),
    [
        (["orders", "--all-records"], {0: 10, 1: 10, 2: 10}),
        (["orders:1", "--before-offset", "4"], {0: 0, 1: 4, 2: 0}),
        (["orders:0,2", "--before-time", "2500"], {0: 3, 1: 0, 2: 3}),
        (["orders:0", "--older-than", "1h"], {0: 10, 1: 0, 2: 0}),
    ],
)
def test_records_are_deleted_before_the_reported_offset(cluster: FakeAdmin, ottla: Ottla, where: list[str], starts: dict[int, int]) -> None:
    dry = documents(ottla("topic", "records-delete", *where, "--dry-run", "-o", "json"), "topic", "records-delete")
    assert not cluster.calls
    assert {one["partition"]: one["before_offset"] for one in dry} == {number: starts[number] for number in starts if starts[number]}
    report = documents(ottla("topic", "records-delete", *where, "-y", "-o", "json"), "topic", "records-delete")
    assert {one["outcome"] for one in report} == {"deleted"}
    assert {number: cluster.logs["orders", number][0] for number in range(3)} == starts


def test_records_are_deleted_by_kafkas_file_format(cluster: FakeAdmin, ottla: Ottla) -> None:
    file = json.dumps(
        {"partitions": [{"topic": "orders", "partition": 2, "offset": -1}, {"topic": "payments", "partition": 0, "offset": 1}]}
    )
    assert (
        rows(ottla("topic", "records-delete", "--file", "-", "-y", input=file))
        == "orders\t2\t0\t10\t10\t10\tdeleted\npayments\t0\t0\t10\t1\t1\tdeleted\n"
    )
    assert "<stdin>: " in refused(ottla("topic", "records-delete", "--file", "-", "-y", input="{}"))


def test_deleting_beyond_the_end_is_refused_before_a_request(cluster: FakeAdmin, ottla: Ottla) -> None:
    assert rows(ottla("topic", "records-delete", "payments", "--before-offset", "0")) == "payments\t0\t0\t10\t0\t0\tnothing to delete\n"
    assert not cluster.calls
    message = refused(ottla("topic", "records-delete", "payments", "--before-offset", "11", "-y"))
    assert "offset 11 is beyond the log end offset 10" in message


@pytest.mark.parametrize(
    "arguments", [["orders"], ["--all-records"], ["orders", "--all-records", "--before-offset", "1"], ["orders", "--file", "-"]]
)
def test_the_records_to_delete_must_be_specified_once(cluster: FakeAdmin, ottla: Ottla, arguments: list[str]) -> None:
    refused(ottla("topic", "records-delete", *arguments, "-y", input="{}"), 2)
    assert not cluster.calls


@pytest.mark.parametrize("command", [("topic", "list"), ("group", "list"), ("cluster", "describe"), ("broker", "list")])
def test_ctrl_c_ends_a_command_silently(ottla: Ottla, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    def interrupted(*arguments: object, **settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ottla.client.sync.admin.Admin", interrupted)
    result = ottla(*command)
    assert (result.exit_code, result.output) == (130, "")
