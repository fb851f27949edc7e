"""`ottla cluster elect` against an in-memory cluster, and its request."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result
from reassigning_cluster import ReassigningCluster

from commands import documents
from ottla.aio import Admin
from ottla.base.ids import TopicPartition
from ottla.cli.main import main
from ottla.client.admin.results import ElectionType
from ottla.client.errors import BrokerIncompatible
from ottla.wire import messages as m
from ottla.wire.errors import ElectionNotNeeded, PreferredLeaderNotAvailable, UnknownTopicOrPartition

Ottla = Callable[..., Result]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> ReassigningCluster:
    """Topic t: partition 0 is led by 2 instead of its preferred replica, 1 by its preferred one; 2 prefers broker 4, which is down."""
    made = ReassigningCluster(4)
    made.place("t", [1, 2], [2, 3], [4, 3])
    made.leaders.update({("t", 0): 2, ("t", 2): 3})
    made.nodes[4].stop()
    monkeypatch.setattr("ottla.client.transport.network.open_connection", made.connect)
    return made


@pytest.fixture
def ottla(cluster: ReassigningCluster) -> Ottla:
    return lambda *arguments, **more: CliRunner().invoke(main, ["cluster", "elect", *arguments, "-b", "boot:1"], **more)


def test_preferred_replicas_are_elected(ottla: Ottla, cluster: ReassigningCluster) -> None:
    result = ottla("-t", "t:0-1")
    assert (result.exit_code, result.stdout) == (0, "t-0\telected\nt-1\tnot needed\n")
    assert cluster.leaders["t", 0] == 1


def test_a_dead_broker_cannot_be_elected(ottla: Ottla) -> None:
    result = ottla("--file", "-", input='{"partitions":[{"topic":"t","partition":2},{"topic":"t","partition":0}]}')
    assert (result.exit_code, result.stdout) == (1, "t-0\telected\n")
    assert result.stderr.startswith("Error: t-2: ")


def test_with_all_topics_only_affected_partitions_are_reported(ottla: Ottla) -> None:
    report = json.loads(ottla("--all-topics", "-o", "json").stdout)
    assert [(one["name"], one["outcome"], one["error"] and one["error"]["code"]) for one in report] == [
        ("t-0", "elected", None),
        ("t-2", None, 80),
    ]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [((), 2), (("-t", "t", "--all-topics"), 2), (("-t", "no"), 1), (("--all-topics", "--unclean"), 2), (("--file", "-"), 1)],
)
def test_invalid_options_are_refused(ottla: Ottla, cluster: ReassigningCluster, arguments: tuple[str, ...], code: int) -> None:
    assert ottla(*arguments, input="[]").exit_code == code
    assert not cluster.sent(m.ElectLeadersRequest)


def test_a_dry_run_reports_affected_partitions_and_their_eligible_replica(ottla: Ottla, cluster: ReassigningCluster) -> None:
    result = ottla("--all-topics", "--dry-run")
    assert (result.exit_code, result.stdout) == (0, "t-0\twould be elected\nt-2\tno eligible replica\n")
    assert documents(ottla("-t", "t:1", "--unclean", "--dry-run", "-o", "json"), "cluster", "elect")[0]["outcome"] == "not needed"
    assert not cluster.sent(m.ElectLeadersRequest)


def test_an_unclean_election_requires_confirmation(ottla: Ottla, cluster: ReassigningCluster) -> None:
    ottla("-t", "t:0", "--unclean", "--yes")
    assert [request.election_type for request in cluster.sent(m.ElectLeadersRequest)] == [1]


async def test_results_are_reported_per_partition(cluster: ReassigningCluster, quick: dict[str, Any]) -> None:
    cluster.controller = 3
    async with Admin(**quick) as admin:
        outcomes = await admin.elect_leaders([("t", 0), ("t", 1), ("t", 2), ("no", 0)])
        assert {tp: type(outcome) for tp, outcome in outcomes.items()} == {
            TopicPartition("t", 0): type(None),
            TopicPartition("t", 1): ElectionNotNeeded,
            TopicPartition("t", 2): PreferredLeaderNotAvailable,
            TopicPartition("no", 0): UnknownTopicOrPartition,
        }
        assert len(cluster.sent(m.ElectLeadersRequest)) <= 2
        assert list(await admin.elect_leaders()) == [TopicPartition("t", 2)]


async def test_an_unclean_election_is_not_sent_to_an_old_broker_that_would_run_a_preferred_one(
    cluster: ReassigningCluster, quick: dict[str, Any]
) -> None:
    cluster.versions[43] = (0, 0)
    async with Admin(**quick) as admin:
        with pytest.raises(BrokerIncompatible):
            await admin.elect_leaders([("t", 0)], election_type=ElectionType.UNCLEAN)
        assert (await admin.elect_leaders([("t", 0)]))[TopicPartition("t", 0)] is None
