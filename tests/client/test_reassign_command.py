"""`ottla cluster reassign` against an in-memory cluster: output, changes and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from reassigning_cluster import ReassigningCluster

from commands import documents, rows, without_headings
from ottla.aio import Admin
from ottla.base.ids import TopicPartition
from ottla.cli.cluster.health import health
from ottla.cli.main import main
from ottla.client.admin.results import PartitionReassignment
from ottla.client.errors import BrokerIncompatible
from ottla.wire import messages as m
from ottla.wire.errors import InvalidReplicaAssignment, NoReassignmentInProgress, UnknownTopicOrPartition

Ottla = Callable[..., Result]
TOPIC, BROKER = 2, 4


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> ReassigningCluster:
    """Brokers 1 to 4; topic t with three partitions on 1, 2 and 3."""
    made = ReassigningCluster(4)
    made.place("t", [1, 2], [2, 3], [3, 1])
    monkeypatch.setattr("ottla.client.transport.network.open_connection", made.connect)
    return made


@pytest.fixture
def ottla(cluster: ReassigningCluster) -> Ottla:
    return lambda *arguments, **more: CliRunner().invoke(main, ["cluster", "reassign", *arguments, "-b", "boot:1"], **more)


@pytest.fixture
def plan(tmp_path: Path) -> str:
    """A file that moves partition 0 to 4 and 2; partition 1 stays on 3 and 2."""
    path = tmp_path / "plan.json"
    content = {
        "version": 1,
        "partitions": [
            {"topic": "t", "partition": 0, "replicas": [4, 2]},
            {"topic": "t", "partition": 1, "replicas": [3, 2]},
        ],
    }
    path.write_text(json.dumps(content))
    return str(path)


def output_of(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


def error_of(result: Result, code: int = 1) -> str:
    assert result.exit_code == code, result.output
    return result.stderr


# Plans.


def test_a_generated_plan_can_be_executed(ottla: Ottla, cluster: ReassigningCluster) -> None:
    planned = output_of(ottla("plan", "-t", "t", "--brokers", "2,3,4", "-o", "json"))
    assert {tuple(one["replicas"]) for one in json.loads(planned)["partitions"]} and cluster.moving == {}
    output_of(ottla("execute", "-", "--yes", input=planned))
    assert cluster.moving and all(1 not in target for target in cluster.moving.values())


def test_json_documents_have_the_fields_of_the_reference(ottla: Ottla, plan: str) -> None:
    for words in (["plan", "-t", "t"], ["execute", plan, "--dry-run"], ["execute", plan, "--yes"], ["list"]):
        documents(ottla(*words, "-o", "json"), "cluster", "reassign", words[0])
    documents(ottla("verify", plan, "-o", "json"), "cluster", "reassign", "verify", code=1)
    documents(ottla("cancel", plan, "-o", "json"), "cluster", "reassign", "cancel")
    documents(ottla("cancel", plan, "--yes", "-o", "json"), "cluster", "reassign", "cancel")
    assert documents(ottla("cancel", plan, "-o", "json"), "cluster", "reassign", "cancel") == []


def test_a_plan_on_a_terminal_shows_the_bytes_to_copy(ottla: Ottla) -> None:
    assert rows(ottla("plan", "-t", "t:0", "--brokers", "2,4")) in ("t-0\t1,2\t2,4\t4\n", "t-0\t1,2\t4,2\t4\n")


def test_topics_can_be_read_from_kafkas_file_format(ottla: Ottla, cluster: ReassigningCluster) -> None:
    cluster.place("u", [1], [1])
    topics = '{"version":1,"topics":[{"topic":"u"}]}'
    made = json.loads(output_of(ottla("plan", "--topics-file", "-", "-o", "json", input=topics)))
    assert {one["topic"] for one in made["partitions"]} == {"u"}


def test_the_replication_factor_can_grow(ottla: Ottla) -> None:
    made = json.loads(output_of(ottla("plan", "--all-topics", "-r", "3", "-o", "json")))
    assert [len(one["replicas"]) for one in made["partitions"]] == [3, 3, 3]


def test_racks_are_respected(ottla: Ottla, cluster: ReassigningCluster) -> None:
    cluster.racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    made = json.loads(output_of(ottla("plan", "-t", "t", "-o", "json")))
    assert {one["partition"] for one in made["partitions"]} >= {0}
    for one in made["partitions"]:
        assert {cluster.racks[broker] for broker in one["replicas"]} == {"a", "b"}


def test_the_current_assignment_is_printed_as_a_plan(ottla: Ottla) -> None:
    made = json.loads(output_of(ottla("plan", "-t", "t", "--current", "-o", "json")))
    assert [one["replicas"] for one in made["partitions"]] == [[1, 2], [2, 3], [3, 1]]


def test_a_balanced_cluster_needs_no_plan(ottla: Ottla) -> None:
    result = ottla("plan", "-t", "t", "--brokers", "1,2,3")
    assert (output_of(result), result.stderr) == ("", "No replica needs to move.\n")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "expected one of --topic"),
        (("-t", "t", "--all-topics"), 2, "expected one of --topic"),
        (("-t", "no"), 1, "no topic no"),
        (("-t", "t:7"), 1, "partition t-7 does not exist"),
        (("-t", "t", "--brokers", "1,9"), 1, "broker 9 is not alive"),
        (("-t", "t", "--brokers", "x"), 2, "expects broker ids"),
        (("-t", "t", "-r", "5"), 1, "too few"),
    ],
)
def test_invalid_plans_are_refused(ottla: Ottla, arguments: tuple[str, ...], code: int, message: str) -> None:
    assert message in error_of(ottla("plan", *arguments), code)


# Moves.


def test_nothing_moves_without_confirmation(ottla: Ottla, cluster: ReassigningCluster, plan: str) -> None:
    result = ottla("execute", plan)
    assert rows(result) == "t-0\t1,2\t4,2\t4\nt-1\t2,3\t3,2\t\n"
    assert "with --yes" in result.stderr and cluster.moving == {}


def test_execute_starts_the_moves_and_keeps_a_rollback_plan(ottla: Ottla, cluster: ReassigningCluster, plan: str, tmp_path: Path) -> None:
    back = tmp_path / "back.json"
    assert output_of(ottla("execute", plan, "--yes", "--rollback", str(back))) == "t-0\tbegun\nt-1\tbegun\n"
    assert cluster.moving == {("t", 0): [4, 2], ("t", 1): [3, 2]}
    assert [one["replicas"] for one in json.loads(back.read_text())["partitions"]] == [[1, 2], [2, 3]]


def test_a_refused_move_is_reported_and_the_others_start(ottla: Ottla, cluster: ReassigningCluster, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    wished = [{"topic": "t", "partition": number, "replicas": ids} for number, ids in ((0, [9]), (1, [4]))]
    path.write_text(json.dumps({"version": 1, "partitions": wished}))
    result = ottla("execute", str(path), "--yes")
    assert error_of(result).startswith("Error: t-0: ") and result.stdout == "t-1\tbegun\n"


def test_both_sides_of_a_move_are_throttled_until_it_is_verified(ottla: Ottla, cluster: ReassigningCluster, plan: str) -> None:
    output_of(ottla("execute", plan, "--yes", "--throttle", "1000"))
    assert cluster.has(TOPIC, "t") == {
        "leader.replication.throttled.replicas": "0:1,0:2",
        "follower.replication.throttled.replicas": "0:4",
    }
    rates = {"leader.replication.throttled.rate": "1000", "follower.replication.throttled.rate": "1000"}
    assert [cluster.has(BROKER, str(number)) for number in range(1, 5)] == [rates, rates, {}, rates]
    assert ottla("verify", plan).exit_code == 1
    assert cluster.has(BROKER, "1") == rates, "the moves are not complete"
    cluster.finish()
    result = ottla("verify", plan)
    assert rows(result) == "t-0\t4,2\tdone\nt-1\t3,2\tdone\n" and "topic t, broker 1, broker 2, broker 4" in result.stderr
    assert not any(cluster.settings.values())


def test_verify_reports_differences_from_the_plan(ottla: Ottla, cluster: ReassigningCluster, plan: str) -> None:
    cluster.alter(("t", 0), [3, 4])
    cluster.alter(("t", 1), [3, 2])
    result = ottla("verify", plan)
    assert error_of(result) == "" and without_headings(result.stdout) == "t-0\t4,2\tmoving to 3,4\nt-1\t3,2\tmoving\n"
    cluster.moving.clear()
    report = json.loads(ottla("verify", plan, "-o", "json").stdout)
    assert [one["state"] for one in report["partitions"]] == ["is on 1,2", "is on 2,3"]


def test_verify_waits_for_completion(ottla: Ottla, cluster: ReassigningCluster, plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    output_of(ottla("execute", plan, "--yes"))
    looked: list[float] = []

    def sleep(seconds: float) -> None:
        looked.append(seconds)
        if len(looked) == 3:
            cluster.finish()

    monkeypatch.setattr("ottla.cli.cluster.reassign.time.sleep", sleep)
    output_of(ottla("verify", plan, "--wait"))
    assert len(looked) == 3


def test_moves_are_listed(ottla: Ottla, cluster: ReassigningCluster) -> None:
    cluster.alter(("t", 1), [4, 2])
    assert rows(ottla("list")) == "t-1\t4,2,3\t4\t3\n"
    (one,) = json.loads(output_of(ottla("list", "-o", "json")))
    assert one == {"topic": "t", "partition": 1, "replicas": [4, 2, 3], "adding": [4], "removing": [3]}


def test_replicas_being_added_are_not_missing_for_cluster_health(cluster: ReassigningCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.cli.cluster.health.BROKER_TIMEOUT_MS", 500)
    cluster.alter(("t", 0), [4, 2])
    assert health("boot:1").under_replicated == {}
    cluster.nodes[3].stop()
    assert list(health("boot:1").under_replicated) == [("t", 1)]


@pytest.mark.parametrize("which", ["plan", "all"])
def test_moves_are_cancelled_after_confirmation(ottla: Ottla, cluster: ReassigningCluster, plan: str, which: str) -> None:
    output_of(ottla("execute", plan, "--yes", "--throttle", "1000"))
    cluster.alter(("t", 2), [4])
    arguments = (plan,) if which == "plan" else ("--all",)
    assert "with --yes" in ottla("cancel", *arguments).stderr and len(cluster.moving) == 3
    output_of(ottla("cancel", *arguments, "--yes"))
    assert list(cluster.moving) == ([("t", 2)] if which == "plan" else [])
    assert not any(cluster.settings.values()), "throttles are removed, too"


def test_cancelling_without_moves_is_no_error(ottla: Ottla, plan: str) -> None:
    assert ottla("cancel", plan, "--yes").stderr == "No reassignment is in progress.\n"
    error_of(ottla("cancel"), 2)
    error_of(ottla("cancel", plan, "--all"), 2)


def test_an_invalid_plan_file_is_refused_with_its_name(ottla: Ottla) -> None:
    assert "<stdin>: this is no plan" in error_of(ottla("execute", "-", input="{"))


# The client.


async def test_requests_go_to_the_controller(cluster: ReassigningCluster, quick: dict[str, Any]) -> None:
    cluster.controller = 3
    async with Admin(**quick) as admin:
        outcomes = await admin.alter_partition_reassignments({("t", 0): [4, 1], ("t", 1): None, ("no", 0): [1], ("t", 2): [9]})
        assert outcomes[TopicPartition("t", 0)] is None
        assert isinstance(outcomes[TopicPartition("t", 1)], NoReassignmentInProgress)
        assert isinstance(outcomes[TopicPartition("no", 0)], UnknownTopicOrPartition)
        assert isinstance(outcomes[TopicPartition("t", 2)], InvalidReplicaAssignment)
        moves = await admin.list_partition_reassignments()
        assert moves == {TopicPartition("t", 0): PartitionReassignment([4, 1, 2], [4], [2])}
        assert moves[TopicPartition("t", 0)].target == [4, 1]
        assert await admin.list_partition_reassignments([("t", 1)]) == {}
        cluster.controller = 2
        assert await admin.alter_partition_reassignments({("t", 0): None}) == {TopicPartition("t", 0): None}


async def test_a_request_that_requires_the_replication_factor_is_not_sent_to_a_broker_without_support(
    cluster: ReassigningCluster, quick: dict[str, Any]
) -> None:
    cluster.versions[45] = (0, 0)
    async with Admin(**quick) as admin:
        (outcome,) = (await admin.alter_partition_reassignments({("t", 0): [4]}, allow_replication_factor_change=False)).values()
        assert isinstance(outcome, BrokerIncompatible)
        assert cluster.sent(m.AlterPartitionReassignmentsRequest) == []
        (outcome,) = (await admin.alter_partition_reassignments({("t", 0): [4]})).values()
        assert outcome is None
