"""Timelines: rebalances, elections and transactions step by step, read from the HTTP listener of a broker."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from browsing import Browser, browsing

import ottla
from ottla.base.options import ConfigError
from ottla.console.pages.partition import bars
from ottla.console.pages.timelines import detail
from ottla.console.timelines.reader import Kind, ReplicaSegments, Segment, TimelineEntry, checked_http, listeners, read_timelines
from ottla.console.timelines.rebalances import rebalances
from ottla.console.timelines.transactions import producers_of, transactions
from serving import Serving

NOWHERE = "127.0.0.1:9"


def changes(kind: Kind, name: str, *noted: tuple[int, str, dict[str, Any]], broker: int = 1) -> list[TimelineEntry]:
    return [
        TimelineEntry(number, 1_000 + at_ms, kind, name, what, fields, broker=broker)
        for number, (at_ms, what, fields) in enumerate(noted, 1)
    ]


def test_a_rebalance_has_causes_steps_of_members_and_its_length() -> None:
    noted = changes(
        "group", "g",
        (0, "synced", {"member": "old", "generation": 3}),
        (10, "joined", {"member": "b", "client_id": "billing-2", "host": "10.0.0.7", "generation": 3}),
        (10, "rebalance started", {"generation": 3, "members": 2}),
        (200, "rejoined", {"member": "a", "generation": 3}),
        (210, "generation", {"generation": 4, "members": 2, "leader": "a", "protocol": "range"}),
        (260, "synced", {"member": "a", "generation": 4}),
        (260, "assigned", {"member": "a", "generation": 4, "partitions": "t 0"}),
        (260, "stable", {"generation": 4, "members": 2}),
        (300, "synced", {"member": "b", "generation": 4}),
        (9_000, "sent no heartbeat in its session timeout and is removed from", {"member": "b", "client_id": "billing-2", "generation": 4}),
    )  # fmt: skip
    later, first = rebalances(noted)
    assert (first.generation, first.took_ms, first.outcome, first.causes) == (4, 250, "stable", ["billing-2 joined"])
    assert [step.what for step in first.members["b"].steps] == ["joined", "synced"]
    assert (first.members["a"].partitions, first.members["b"].last_ms, first.length_ms) == ("t 0", 290, 290)
    assert later.ended_ms is None and later.members["b"].is_gone
    assert later.causes == ["billing-2 sent no heartbeat in its session timeout and is removed"]


def test_members_of_the_consumer_protocol_show_what_they_revoke() -> None:
    noted = changes(
        "group", "g",
        (0, "joined", {"member": "b", "client_id": "", "generation": 2}),
        (0, "new assignment", {"generation": 2, "members": 2}),
        (0, "unreleased partitions", {"member": "b", "generation": 2, "partitions": "", "revoking": ""}),
        (40, "unrevoked partitions", {"member": "a", "generation": 1, "partitions": "t 0", "revoking": "t 1"}),
        (90, "stable", {"member": "a", "generation": 2, "partitions": "t 0", "revoking": ""}),
        (120, "stable", {"member": "b", "generation": 2, "partitions": "t 1", "revoking": ""}),
        (120, "state Stable", {"generation": 2, "members": 2}),
    )  # fmt: skip
    (one,) = rebalances(noted)
    assert (one.generation, one.took_ms, one.outcome) == (2, 120, "stable")
    assert [step.detail for step in one.members["a"].steps] == ["revokes t 1", ""]
    assert one.members["b"].partitions == "t 1"


def test_a_transaction_gets_the_markers_of_its_producer() -> None:
    ongoing = {"producer_id": 7, "partitions": 1, "first_partitions": ["t-0"], "started_ms": 1_000, "client_id": "c"}
    states = changes(
        "transaction", "x", (5, "Ongoing", ongoing), (100, "PrepareCommit", ongoing),
        (130, "markers answered", {"leader": 2, "asked": 1, "written": 1}), (131, "CompleteCommit", {**ongoing, "partitions": 0}),
        (500, "Ongoing", {**ongoing, "started_ms": 1_500}),
    )  # fmt: skip
    marker = changes("transaction", "producer 7", (120, "commit marker", {"partition": "t-0", "offset": 9, "producer_epoch": 0}), broker=2)
    assert producers_of(states) == ["producer 7"]
    still_open, done = transactions([*states, *marker])
    assert (done.outcome, done.open_ms, done.took_ms, done.first_partitions) == ("committed", 100, 131, ["t-0"])
    assert [step.what for step in done.steps] == ["Ongoing", "PrepareCommit", "commit marker", "markers answered", "CompleteCommit"]
    assert done.steps[2].detail == "t-0 at offset 9, broker 2"
    assert (still_open.outcome, still_open.took_ms) == ("open", None)


def test_an_election_is_one_sentence() -> None:
    (one,) = changes("partition", "t-0", (0, "leader elected", {"leader": 2, "before": -1, "epoch": 5, "isr": [2, 3], "unclean": True}))
    assert detail(one) == "broker 2 instead of none, unclean: acknowledged records may be lost, ISR 2, 3, epoch 5"


def test_addresses_of_listeners_are_checked_and_a_port_is_that_of_all_brokers() -> None:
    assert checked_http(["http://a:9644/", ":9644", "a:9644"]) == ("a:9644", ":9644")
    for wrong in ("a", "a:0", "a:b", "http://a:1/x", "u@a:1"):
        with pytest.raises(ConfigError, match=r"expected HOST:PORT"):
            checked_http([wrong])
    assert listeners(["a:1", ":2"], ["h", "::1", "h"]) == ["a:1", "h:2", "[::1]:2"]


def test_a_listener_that_cannot_be_read_is_a_problem_and_no_error() -> None:
    found = asyncio.run(read_timelines([NOWHERE], kind="group"))
    assert found.changes == [] and found.problems[0].startswith(f"{NOWHERE} cannot be read")


def test_without_listeners_the_page_says_how_to_get_them(offline: Browser) -> None:
    text = offline.text("/timelines")
    assert "Apache Kafka and Redpanda do not" in text and "ottla console --http :9644" in text


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A console of a server whose group, transaction and topic have a history."""
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with Serving(tmp_path_factory.mktemp("timelines") / "data", arguments=["--http", "127.0.0.1:0"], settings=settings) as server:
        line = next(line for line in server.logs().splitlines() if "/health/ready on http://" in line)
        address = line.rpartition("http://")[2].split()[0]
        with ottla.Admin(bootstrap_servers=server.bootstrap) as admin:
            admin.create_topics([ottla.NewTopic("orders", 2), ottla.NewTopic("rolled", 1, configs={"segment.bytes": str(1 << 20)})])
        with ottla.Producer(bootstrap_servers=server.bootstrap, transactional_id="tx-1") as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("orders", b"one")
        with ottla.Producer(bootstrap_servers=server.bootstrap) as plain:
            for _ in range(5):
                plain.send("rolled", random.Random(1).randbytes(600_000))
        for protocol in ("classic", "consumer"):
            with ottla.Consumer(
                "orders", bootstrap_servers=server.bootstrap, group_id=f"of-{protocol}", client_id="billing", group_protocol=protocol,
                auto_offset_reset="earliest",
            ) as consumer:  # fmt: skip
                next(iter(consumer))
        with browsing(server.bootstrap, http=(address, NOWHERE)) as made:
            yield made


@pytest.mark.server
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_rebalance_of_a_group_is_shown_per_member(watched: Browser, protocol: str) -> None:
    text = watched.text(f"/timelines/groups?name=of-{protocol}")
    assert "billing joined" in text and "orders 0-1" in text and "stable" in text, text
    assert f"{NOWHERE} cannot be read" in text


@pytest.mark.server
def test_a_transaction_is_shown_from_its_begin_to_its_marker(watched: Browser) -> None:
    text = watched.text("/timelines/transactions?name=tx-1")
    assert "committed" in text and "PrepareCommit" in text and "commit marker orders-" in text, text


@pytest.mark.server
def test_elections_and_the_controller_are_shown_per_broker(watched: Browser) -> None:
    assert "became leader" in watched.text("/timelines/partitions?name=orders&broker=1")
    assert "Nothing of nosuch is in the memory" in watched.text("/timelines/partitions?name=nosuch")
    assert "was elected as controller" in watched.text("/timelines/controller")


@pytest.mark.server
def test_segments_of_a_partition_are_drawn_to_scale(watched: Browser) -> None:
    html = watched.get("/topics/rolled/partitions/0").text
    widths = [float(found) for found in re.findall(r'<rect class="[a-z]*" x="[0-9.]+" width="([0-9.]+)"', html)]
    text = watched.text("/topics/rolled/partitions/0")
    assert len(widths) >= 3 and abs(sum(widths) - 1000) < 1 and "leader" in text and "active" in text, text
    assert watched.get("/topics/rolled/partitions/7").status_code == 404


def test_small_segments_are_visible_and_the_picture_keeps_its_width() -> None:
    sizes = [1, 1, 1_000_000, 0]
    replica = ReplicaSegments(1, "/d", "leader", 0, 40, 40, 40, 0, [Segment(10 * place, size) for place, size in enumerate(sizes)])
    drawn = bars(replica, 2_000_000)
    assert abs(sum(one.width for one in drawn) - 500) < 0.1 and min(one.width for one in drawn) > 1
    assert [(one.base_offset, one.until) for one in drawn] == [(0, 10), (10, 20), (20, 30), (30, 40)]
    assert [one.is_active for one in drawn] == [False, False, False, True]
    assert bars(msgspec.structs.replace(replica, segments=[]), 0) == []
