"""The timeline of a broker: changes of groups, partitions, transactions and the controller."""

from typing import Any

from cluster import Cluster
from groups import SESSION_MS, cluster_of_groups, join, leave, sync
from transactional import Producer, cluster_of_transactions, coordinator

from ottla.broker.groups.assignment_text import assignment_text, embedded_text
from ottla.broker.timeline import NAME_MAX, TEXT_MAX, Entry, Kind, Timeline, producer_name
from ottla.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest


class Clock:
    wall_ms = 1_000


def entries(broker: Any, kind: Kind, name: str = "") -> list[Entry]:
    """Changes of a broker's timeline, oldest first."""
    return [entry for entry in broker.node.context.timeline.rings[kind] if not name or entry.name == name]


def told(broker: Any, kind: Kind, name: str = "") -> list[str]:
    return [entry.what for entry in entries(broker, kind, name)]


def test_each_kind_has_a_ring_and_numbers_increase_over_all() -> None:
    timeline = Timeline(Clock(), 2)
    for number in range(3):
        timeline.note("transaction", f"x{number}", "Ongoing")
        timeline.note("group", "g", "joined")
    assert [entry.number for entry in timeline.rings["transaction"]] == [3, 5]
    assert [entry.number for entry in timeline.rings["group"]] == [4, 6]


def test_an_entry_has_the_beginning_of_a_long_name_only() -> None:
    timeline = Timeline(Clock(), 2)
    timeline.note("group", "g" * 32_000, "joined")
    assert [entry.name for entry in timeline.rings["group"]] == ["g" * NAME_MAX]


def test_a_rebalance_of_a_classic_group_has_each_step_of_each_member() -> None:
    cluster = cluster_of_groups()
    broker = cluster[1]
    first = join(broker, reason="it starts")
    cluster.pass_ms(10_000)
    sync(broker, first.answer, given={first.answer.member_id: b"all"})
    second = join(broker)
    again = join(broker, member=first.answer.member_id)
    sync(broker, again.answer, given={})
    sync(broker, second.answer, given={})
    found = entries(broker, "group", "g")
    assert [entry.what for entry in found if entry.what != "assigned"] == [
        *("joined", "rebalance started", "generation", "synced", "stable"),
        *("joined", "rebalance started", "rejoined", "generation", "synced", "stable", "synced"),
    ]
    assert (found[0].fields["member"], found[0].fields["reason"]) == (first.answer.member_id, "it starts")
    (last,) = [entry for entry in found if entry.what == "generation" and entry.fields["generation"] == 2]
    assert last.fields["members"] == 2 and last.wall_ms >= found[0].wall_ms


def test_a_group_becomes_empty_once() -> None:
    cluster = cluster_of_groups()
    broker = cluster[1]
    first = join(broker)
    cluster.pass_ms(10_000)
    sync(broker, first.answer, given={first.answer.member_id: b"all"})
    leave(broker, first.answer.member_id)
    cluster.pass_ms(5 * SESSION_MS)
    assert told(broker, "group", "g")[-3:] == ["left", "rebalance started", "empty"]
    assert told(broker, "group", "g").count("empty") == 1


def test_a_member_of_a_consumer_group_is_followed_to_its_epoch() -> None:
    cluster = cluster_of_groups()
    broker = cluster.topic("t4", partitions=4)
    beat = ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="m1", member_epoch=0, rebalance_timeout_ms=60_000, subscribed_topic_names=["t4"], topic_partitions=[]
    )
    assert not broker.ask(beat, 1).error_code
    (stable,) = [entry for entry in entries(broker, "group", "g") if entry.what == "stable"]
    assert (stable.fields["member"], stable.fields["partitions"], stable.fields["revoking"]) == ("m1", "t4 0-3", "")
    assert {"joined", "new assignment"} <= set(told(broker, "group", "g"))


def test_a_transaction_is_followed_from_its_begin_to_its_markers() -> None:
    cluster = cluster_of_transactions()
    producer = Producer(cluster)
    producer.send("a")
    assert not producer.end(commit=True)
    cluster.pass_ms(1_000)
    found = entries(coordinator(cluster), "transaction", "x")
    states = [entry.what for entry in found if entry.what != "Empty"]
    assert states == ["Ongoing", "PrepareCommit", "markers answered", "CompleteCommit"]
    (ongoing, _, answered, _) = found[-4:]
    assert ongoing.fields["first_partitions"] and (answered.fields["asked"], answered.fields["written"]) == (1, 1)
    markers = [
        entry
        for broker in cluster.brokers.values()
        for entry in entries(broker, "transaction", producer_name(ongoing.fields["producer_id"]))
    ]
    assert [(entry.what, entry.fields["partition"]) for entry in markers] == [("commit marker", ongoing.fields["first_partitions"][0])]


def test_an_election_and_the_isr_are_followed_on_every_broker() -> None:
    cluster = Cluster(brokers=3)
    leader = cluster.topic("t", replicas=3)
    cluster.kill(leader.broker_id)
    cluster.pass_ms(2_000)
    (elected,) = [entry for entry in entries(cluster.controller, "partition", "t-0") if entry.what == "leader elected"]
    assert elected.fields["before"] == leader.broker_id
    now = cluster[elected.fields["leader"]]
    assert "became leader" in told(now, "partition", "t-0")
    other = next(broker for number, broker in cluster.brokers.items() if number not in (leader.broker_id, now.broker_id))
    assert entries(other, "partition", "t-0")[-1].fields["leader"] == now.broker_id
    assert any(what == "was elected as controller" for broker in cluster.brokers.values() for what in told(broker, "controller"))


def test_assignments_are_short_texts() -> None:
    assert assignment_text({"b": [3], "a": [7, 0, 1, 2]}) == "a 0-2 7, b 3"
    assert len(assignment_text({f"topic-{number}": [number] for number in range(100)})) == TEXT_MAX
    assert embedded_text(b"\x00\x01\xff") == "" == embedded_text(b"")
