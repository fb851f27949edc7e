"""Lines of the broker's log: what an operator reconstructs an outage from."""

import pytest
from cluster import Cluster, batch, produce
from groups import SESSION_MS, cluster_of_groups, join, leave, sync
from transactional import TIMEOUT_MS, cluster_of_transactions, coordinator
from transactional import Producer as TransactionalProducer

from ottla.base.log_levels import CONTROLLER, GROUP, REPLICA, SESSION, STORAGE, TRANSACTION, LogLevel
from ottla.broker import effects
from ottla.broker.coordinator import Shard
from ottla.broker.event_log import KINDS_MAX, NAMED_MAX, EventLog
from ottla.wire.errors import NotEnoughReplicas
from ottla.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState


class Steps:
    """Effects of the present step."""

    def __init__(self) -> None:
        self.effects: list[effects.Effect] = []

    def step(self) -> list[effects.Effect]:
        self.effects = []
        return self.effects


def messages(step: list[effects.Effect]) -> list[str]:
    return [effect.message for effect in step if isinstance(effect, effects.Log)]


def test_things_of_one_step_are_one_line() -> None:
    steps = Steps()
    log = EventLog(steps)
    for number in range(30):
        log.many(REPLICA, "became leader of ", f"t-{number}", epoch=number)
    (line,) = steps.effects
    assert isinstance(line, effects.Log)
    assert (line.message, line.fields["count"], len(line.fields["partitions"])) == ("became leader of 30 partitions", 30, NAMED_MAX)


def test_one_thing_is_named_with_its_fields() -> None:
    steps = Steps()
    EventLog(steps).many(REPLICA, "became leader of ", "t-0", " again", epoch=7)
    (line,) = steps.effects
    assert isinstance(line, effects.Log)
    assert (line.message, line.fields) == ("became leader of t-0 again", {"epoch": 7})


def test_what_follows_in_later_steps_is_one_line_after_the_tick() -> None:
    steps = Steps()
    log = EventLog(steps)
    log.many(REPLICA, "became leader of ", "t-0")
    for number in range(1, 5):
        assert messages(steps.step()) == []
        log.many(REPLICA, "became leader of ", f"t-{number}")
    later = steps.step()
    log.tick()
    assert messages(later) == ["became leader of 4 partitions"]
    again = steps.step()
    log.tick()
    assert again == []
    log.many(REPLICA, "became leader of ", "t-9")
    assert messages(again) == ["became leader of t-9"]


def test_kinds_that_clients_choose_are_limited() -> None:
    steps = Steps()
    log = EventLog(steps)
    for number in range(KINDS_MAX + 7):
        log.many(GROUP, "", "member 'm'", f" joined group 'g{number}'", unit="members")
    log.many(REPLICA, "became leader of ", "t-0")
    assert len(messages(steps.effects)) == KINDS_MAX + 1
    later = steps.step()
    log.tick()
    assert messages(later) == [f"7 more events were left out; this logger has at most {KINDS_MAX} kinds of lines per second"]


def test_a_failover_is_logged_by_the_controller_and_the_new_leader() -> None:
    cluster = Cluster(brokers=3)
    cluster.topic("t", partitions=4, replicas=3)
    gone = cluster.leading("t").broker_id
    for broker in cluster.brokers.values():
        broker.lines.clear()
    cluster.kill(gone)
    cluster.pass_ms(2_000)
    lines = cluster.controller.logged(CONTROLLER)
    assert any(line.startswith(f"broker {gone} is gone") for line in lines) or any("was elected as controller" in line for line in lines)
    assert any(line.startswith("elects broker ") and "as leader of " in line for line in lines), lines
    led = [line for broker in cluster.brokers.values() for line in broker.logged(REPLICA) if line.startswith("became leader of ")]
    assert led, "the new leaders say so"


def test_a_new_controller_and_its_loss_are_logged_by_every_broker() -> None:
    cluster = Cluster(brokers=3)
    first = cluster.controller
    cluster.kill(first.broker_id)
    second = cluster.controller
    assert any(line == f"broker {second.broker_id} was elected as controller" for line in second.logged(CONTROLLER))
    other = next(broker for broker in cluster.brokers.values() if broker is not second)
    assert other.logged(CONTROLLER)[-2:] == ["there is no controller", f"broker {second.broker_id} is the controller"]


def test_changes_of_the_isr_are_logged_with_the_broker_and_counted() -> None:
    cluster = Cluster(brokers=3)
    leader = cluster.topic("t", partitions=3, replicas=3)
    other = next(number for number in cluster.brokers if number != leader.broker_id and not cluster[number].node.controller.active)
    produce(leader, batch(b"v"))
    texts, disks = cluster[other].texts, [disk.restart() for disk in cluster[other].disks.values()]
    cluster.kill(other)
    cluster.pass_ms(1_500)
    assert any(line.startswith(f"broker {other} left the ISR of ") for line in leader.logged(REPLICA)), leader.logged(REPLICA)
    cluster.start(other, texts, disks)
    cluster.pass_ms(5_000)
    assert any(line.startswith(f"broker {other} joined the ISR of ") for line in leader.logged(REPLICA)), leader.logged(REPLICA)
    partitions = leader.node.partitions
    assert (partitions.isr_shrinks, partitions.isr_expands) == (len(partitions.leaders), len(partitions.leaders))


def test_topics_are_logged_when_they_are_created_grown_and_deleted() -> None:
    cluster = Cluster()
    broker = cluster.topic("t", partitions=2)
    grown = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="t", count=5, assignments=None)], timeout_ms=1000)
    assert not broker.ask(grown, 3).results[0].error_code
    assert not broker.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000), 6).responses[0].error_code
    cluster.pass_ms(1_000)
    said = [line for line in broker.logged(CONTROLLER) if "topic" in line]
    assert said == ["created topic 't'", "added partitions to topic 't'", "deleted topic 't'"]


def test_registration_and_session_are_logged() -> None:
    cluster = Cluster()
    assert any(line.startswith("registered under broker epoch ") for line in cluster[1].logged(SESSION))


def test_rebalances_of_classic_groups_are_logged_with_their_cause() -> None:
    cluster = cluster_of_groups()
    broker = cluster[1]
    first = join(broker, reason="it starts")
    cluster.pass_ms(10_000)
    sync(broker, first.answer, given={first.answer.member_id: b"all"})
    second = join(broker)
    again = join(broker, member=first.answer.member_id)
    sync(broker, again.answer, given={})
    sync(broker, second.answer, given={})
    lines = broker.logged(GROUP)
    assert f"member {first.answer.member_id!r} joined group 'g'" in lines
    cause = next(line for line in broker.lines if line.message == f"member {first.answer.member_id!r} joined group 'g'")
    assert (cause.fields["reason"], cause.fields["client_id"]) == ("it starts", "test")
    assert "new generation of group 'g'" in lines
    cluster.pass_ms(1_000)
    leave(broker, second.answer.member_id)
    assert f"member {second.answer.member_id!r} left group 'g'" in broker.logged(GROUP)
    cluster.pass_ms(5 * SESSION_MS + 60_000)
    gone = f"member {first.answer.member_id!r} "
    assert any(line.startswith(gone) and "is removed from group 'g'" in line for line in broker.logged(GROUP)), broker.logged(GROUP)


def test_rebalances_of_consumer_groups_are_logged_with_their_cause() -> None:
    cluster = cluster_of_groups()
    broker = cluster[1]
    beat = ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="m1", member_epoch=0, rebalance_timeout_ms=60_000, subscribed_topic_names=["t"], topic_partitions=[]
    )
    assert not broker.ask(beat, 1).error_code
    assert broker.logged(GROUP)[-2:] == ["member 'm1' joined group 'g'", "new assignment for group 'g'"]
    cluster.pass_ms(60_000)
    assert "member 'm1' sent no heartbeat in its session timeout and is removed from group 'g'" in broker.logged(GROUP)


def test_transactions_that_time_out_are_logged() -> None:
    cluster = cluster_of_transactions()
    producer = TransactionalProducer(cluster)
    producer.send("a")
    cluster.pass_ms(TIMEOUT_MS + 20_000)
    line = next(line for line in coordinator(cluster).lines if line.logger == TRANSACTION)
    assert (line.message, line.fields["timeout_ms"]) == ("the transaction timed out and is aborted: 'x'", TIMEOUT_MS)


def test_new_segments_and_deleted_ones_are_logged_at_debug() -> None:
    cluster = Cluster(settings={"log.retention.check.interval.ms": "1000"})
    broker = cluster.topic("t", configs={"segment.bytes": str(1 << 20), "retention.ms": "5000"})
    for _ in range(3):
        produce(broker, batch(b"v" * 700_000, timestamp_ms=cluster.wall_ms))
        cluster.pass_ms(1_500)
    cluster.pass_ms(20_000)
    lines = broker.logged(STORAGE, LogLevel.DEBUG)
    assert "a new segment of t-0" in lines and "retention deletes segments of t-0" in lines
    assert broker.logged(STORAGE) == []


def test_requests_of_clients_cause_no_lines() -> None:
    cluster = Cluster()
    broker = cluster.topic("t")
    broker.lines.clear()
    for _ in range(10):
        assert produce(broker, batch(b"v")).error_code == 0
    assert broker.lines == []


@pytest.mark.parametrize("name", ["a{}b", "a{0}", "%s"])
def test_names_of_clients_are_no_templates(name: str) -> None:
    steps = Steps()
    EventLog(steps).many(GROUP, "member ", name, f" joined group {name!r}", unit="members")
    assert messages(steps.effects) == [f"member {name} joined group {name!r}"]


def test_a_group_without_members_is_logged_once_though_its_record_was_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The members are still in the log then: their sessions expire after the next start, and that is when the group is empty there."""
    cluster = cluster_of_groups()
    broker = cluster[1]
    first = join(broker)
    cluster.pass_ms(10_000)
    sync(broker, first.answer, given={first.answer.member_id: b"all"})

    def refused(*arguments: object, **options: object) -> None:
        raise NotEnoughReplicas("too few replicas are in sync")

    with monkeypatch.context() as patched:
        patched.setattr(Shard, "write", refused)
        leave(broker, first.answer.member_id)
    told = list(broker.logged(GROUP))
    assert told[-1] == f"member {first.answer.member_id!r} left group 'g'"
    texts, disks = broker.texts, [disk.restart() for disk in broker.disks.values()]
    cluster.kill(1)
    cluster.start(1, texts, disks)
    cluster.pass_ms(5 * SESSION_MS)
    told += cluster[1].logged(GROUP)
    assert told.count("no members are left in group 'g'") == 1, told
