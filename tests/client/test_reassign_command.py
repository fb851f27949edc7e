"""`ottla cluster reassign` against a cluster in memory: what it prints, what it changes, how it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from reassigning_cluster import ReassigningCluster

from commands import documents
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
    """A file: partition 0 goes to 4 and 2, partition 1 stays with 3 and 2."""
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


def good(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(result: Result, code: int = 1) -> str:
    assert result.exit_code == code, result.output
    return result.stderr


# Plans.


def test_a_plan_of_one_command_is_what_the_other_executes(ottla: Ottla, cluster: ReassigningCluster) -> None:
    planned = good(ottla("plan", "-t", "t", "--brokers", "2,3,4", "-o", "json"))
    assert {tuple(one["replicas"]) for one in json.loads(planned)["partitions"]} and cluster.moving == {}
    good(ottla("execute", "-", "--yes", input=planned))
    assert cluster.moving and all(1 not in target for target in cluster.moving.values())


def test_documents_have_the_fields_that_the_reference_names(ottla: Ottla, plan: str) -> None:
    for words in (["plan", "-t", "t"], ["execute", plan, "--dry-run"], ["execute", plan, "--yes"], ["list"]):
        documents(ottla(*words, "-o", "json"), "cluster", "reassign", words[0])
    documents(ottla("verify", plan, "-o", "json"), "cluster", "reassign", "verify", code=1)
    documents(ottla("cancel", plan, "-o", "json"), "cluster", "reassign", "cancel")
    documents(ottla("cancel", plan, "--yes", "-o", "json"), "cluster", "reassign", "cancel")
    assert documents(ottla("cancel", plan, "-o", "json"), "cluster", "reassign", "cancel") == []


def test_a_plan_for_people_shows_what_has_to_be_copied(ottla: Ottla) -> None:
    assert good(ottla("plan", "-t", "t:0", "--brokers", "2,4")) in ("t-0\t1,2\t2,4\t4\n", "t-0\t1,2\t4,2\t4\n")


def test_topics_may_come_from_a_file_of_kafkas(ottla: Ottla, cluster: ReassigningCluster) -> None:
    cluster.place("u", [1], [1])
    topics = '{"version":1,"topics":[{"topic":"u"}]}'
    made = json.loads(good(ottla("plan", "--topics-file", "-", "-o", "json", input=topics)))
    assert {one["topic"] for one in made["partitions"]} == {"u"}


def test_replicas_may_become_more(ottla: Ottla) -> None:
    made = json.loads(good(ottla("plan", "--all-topics", "-r", "3", "-o", "json")))
    assert [len(one["replicas"]) for one in made["partitions"]] == [3, 3, 3]


def test_racks_are_heeded(ottla: Ottla, cluster: ReassigningCluster) -> None:
    cluster.racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    made = json.loads(good(ottla("plan", "-t", "t", "-o", "json")))
    assert {one["partition"] for one in made["partitions"]} >= {0}
    for one in made["partitions"]:
        assert {cluster.racks[broker] for broker in one["replicas"]} == {"a", "b"}


def test_where_partitions_are_is_a_plan_too(ottla: Ottla) -> None:
    made = json.loads(good(ottla("plan", "-t", "t", "--current", "-o", "json")))
    assert [one["replicas"] for one in made["partitions"]] == [[1, 2], [2, 3], [3, 1]]


def test_what_is_even_needs_no_plan(ottla: Ottla) -> None:
    result = ottla("plan", "-t", "t", "--brokers", "1,2,3")
    assert (good(result), result.stderr) == ("", "No replica needs to move.\n")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
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
def test_plans_that_cannot_be_are_refused(ottla: Ottla, arguments: tuple[str, ...], code: int, said: str) -> None:
    assert said in refused(ottla("plan", *arguments), code)


# Moves.


def test_nothing_moves_without_yes(ottla: Ottla, cluster: ReassigningCluster, plan: str) -> None:
    result = ottla("execute", plan)
    assert good(result) == "t-0\t1,2\t4,2\t4\nt-1\t2,3\t3,2\t\n"
    assert "with --yes" in result.stderr and cluster.moving == {}


def test_moves_begin_and_the_way_back_is_kept(ottla: Ottla, cluster: ReassigningCluster, plan: str, tmp_path: Path) -> None:
    back = tmp_path / "back.json"
    assert good(ottla("execute", plan, "--yes", "--rollback", str(back))) == "t-0\tbegun\nt-1\tbegun\n"
    assert cluster.moving == {("t", 0): [4, 2], ("t", 1): [3, 2]}
    assert [one["replicas"] for one in json.loads(back.read_text())["partitions"]] == [[1, 2], [2, 3]]


def test_what_the_cluster_refuses_is_reported_and_the_rest_begins(ottla: Ottla, cluster: ReassigningCluster, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    wished = [{"topic": "t", "partition": number, "replicas": ids} for number, ids in ((0, [9]), (1, [4]))]
    path.write_text(json.dumps({"version": 1, "partitions": wished}))
    result = ottla("execute", str(path), "--yes")
    assert refused(result).startswith("Error: t-0: ") and result.stdout == "t-1\tbegun\n"


def test_a_move_is_throttled_on_both_sides_until_it_is_verified(ottla: Ottla, cluster: ReassigningCluster, plan: str) -> None:
    good(ottla("execute", plan, "--yes", "--throttle", "1000"))
    assert cluster.has(TOPIC, "t") == {
        "leader.replication.throttled.replicas": "0:1,0:2",
        "follower.replication.throttled.replicas": "0:4",
    }
    rates = {"leader.replication.throttled.rate": "1000", "follower.replication.throttled.rate": "1000"}
    assert [cluster.has(BROKER, str(number)) for number in range(1, 5)] == [rates, rates, {}, rates]
    assert ottla("verify", plan).exit_code == 1
    assert cluster.has(BROKER, "1") == rates, "it is not done"
    cluster.finish()
    result = ottla("verify", plan)
    assert good(result) == "t-0\t4,2\tdone\nt-1\t3,2\tdone\n" and "topic t, broker 1, broker 2, broker 4" in result.stderr
    assert not any(cluster.settings.values())


def test_verify_reports_what_is_not_as_planned(ottla: Ottla, cluster: ReassigningCluster, plan: str) -> None:
    cluster.alter(("t", 0), [3, 4])
    cluster.alter(("t", 1), [3, 2])
    result = ottla("verify", plan)
    assert refused(result) == "" and result.stdout == "t-0\t4,2\tmoving to 3,4\nt-1\t3,2\tmoving\n"
    cluster.moving.clear()
    told = json.loads(ottla("verify", plan, "-o", "json").stdout)
    assert [one["state"] for one in told["partitions"]] == ["is on 1,2", "is on 2,3"]


def test_verify_waits_for_the_end(ottla: Ottla, cluster: ReassigningCluster, plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    good(ottla("execute", plan, "--yes"))
    looked: list[float] = []

    def sleep(seconds: float) -> None:
        looked.append(seconds)
        if len(looked) == 3:
            cluster.finish()

    monkeypatch.setattr("ottla.cli.cluster.reassign.time.sleep", sleep)
    good(ottla("verify", plan, "--wait"))
    assert len(looked) == 3


def test_moves_are_listed(ottla: Ottla, cluster: ReassigningCluster) -> None:
    cluster.alter(("t", 1), [4, 2])
    assert good(ottla("list")) == "t-1\t4,2,3\t4\t3\n"
    (one,) = json.loads(good(ottla("list", "-o", "json")))
    assert one == {"topic": "t", "partition": 1, "replicas": [4, 2, 3], "adding": [4], "removing": [3]}


def test_replicas_that_are_being_added_are_not_missed_by_checks_whether_a_cluster_is_healthy(
    cluster: ReassigningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.cli.cluster.health.BROKER_TIMEOUT_MS", 500)
    cluster.alter(("t", 0), [4, 2])
    assert health("boot:1").under_replicated == {}
    cluster.nodes[3].stop()
    assert list(health("boot:1").under_replicated) == [("t", 1)]


@pytest.mark.parametrize("which", ["plan", "all"])
def test_moves_are_cancelled_with_yes(ottla: Ottla, cluster: ReassigningCluster, plan: str, which: str) -> None:
    good(ottla("execute", plan, "--yes", "--throttle", "1000"))
    cluster.alter(("t", 2), [4])
    arguments = (plan,) if which == "plan" else ("--all",)
    assert "with --yes" in ottla("cancel", *arguments).stderr and len(cluster.moving) == 3
    good(ottla("cancel", *arguments, "--yes"))
    assert list(cluster.moving) == ([("t", 2)] if which == "plan" else [])
    assert not any(cluster.settings.values()), "throttles go, too"


def test_cancelling_nothing_is_no_error(ottla: Ottla, plan: str) -> None:
    assert ottla("cancel", plan, "--yes").stderr == "No reassignment is in progress.\n"
    refused(ottla("cancel"), 2)
    refused(ottla("cancel", plan, "--all"), 2)


def test_a_file_that_is_not_a_plan_is_refused_by_its_name(ottla: Ottla) -> None:
    assert "<stdin>: this is no plan" in refused(ottla("execute", "-", input="{"))


# The client.


async def test_the_controller_is_found_wherever_it_is(cluster: ReassigningCluster, quick: dict[str, Any]) -> None:
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


async def test_who_insists_on_the_factor_is_not_sent_to_a_broker_that_does_not_hear_it(
    cluster: ReassigningCluster, quick: dict[str, Any]
) -> None:
    cluster.versions[45] = (0, 0)
    async with Admin(**quick) as admin:
        (outcome,) = (await admin.alter_partition_reassignments({("t", 0): [4]}, allow_replication_factor_change=False)).values()
        assert isinstance(outcome, BrokerIncompatible)
        assert cluster.sent(m.AlterPartitionReassignmentsRequest) == []
        (outcome,) = (await admin.alter_partition_reassignments({("t", 0): [4]})).values()
        assert outcome is None
