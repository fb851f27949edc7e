"""Controlled shutdown: a stopping broker transfers leadership and leaves ISRs, and is not added again."""

import json

import pytest
from cluster import Broker, Cluster, batch, fetch, produce, produce_request, values

from ottla.base.ids import TopicPartition
from ottla.base.ports import Op
from ottla.broker import events
from ottla.broker.controller.alter_partition import altered
from ottla.broker.registration.controlled_shutdown import DRAIN_MS
from ottla.store import layout
from ottla.wire import errors
from ottla.wire.messages import CreatableTopic, CreateTopicsRequest, ElectLeadersRequest, ElectLeadersRequestTopicPartitions
from ottla.wire.messages.alter_partition import AlterPartitionRequestPartition, BrokerState
from ottla.wire.messages.create_topics import CreatableReplicaAssignment as Assigned

T0 = TopicPartition("t", 0)


def a_cluster(*assignments: list[int], brokers: int = 3, **settings: str) -> Cluster:
    texts = {"auto.leader.rebalance.enable": "false", **{name.replace("_", "."): value for name, value in settings.items()}}
    cluster = Cluster(brokers=brokers, settings=texts)
    replicas = [Assigned(partition_index=number, broker_ids=ids) for number, ids in enumerate(assignments)]
    requested = CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=replicas)
    assert cluster.controller.ask(CreateTopicsRequest(topics=[requested], timeout_ms=1000), 7).topics[0].error_code == 0
    cluster.pass_ms(1500)
    return cluster


def request_stop(broker: Broker) -> Broker:
    broker.handle(events.StopRequested())
    broker.cluster.run()
    return broker


def states(cluster: Cluster) -> list[tuple[int, set[int]]]:
    found = cluster.controller.node.context.image.topics["t"].states
    return [(state.leader, set(state.isr)) for _, state in sorted(found.items())]


def registration(cluster: Cluster, broker: int) -> dict[str, object]:
    return dict(json.loads(cluster.store.tree.nodes[layout.broker(broker)].data))


# What happens to its partitions.


def test_the_mark_is_written_also_when_the_registration_was_just_changed() -> None:
    cluster = a_cluster([1, 2, 3])
    cluster.store_delivers = False
    node = cluster.store.tree.nodes[layout.broker(1)]
    cluster.store.session().submit((Op("set", layout.broker(1), node.data, version=node.version),), lambda result: None)
    request_stop(cluster[1])
    assert "in_controlled_shutdown" not in registration(cluster, 1)
    cluster.store_delivers = True
    cluster.run()
    assert registration(cluster, 1)["in_controlled_shutdown"] is True


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_controlled_shutdown_moves_leaders_away_and_leaves_every_isr(number: int) -> None:
    cluster = a_cluster([1, 2, 3], [2, 3, 1], [3, 1, 2])
    epochs = [state.leader_epoch for _, state in sorted(cluster.controller.node.context.image.topics["t"].states.items())]
    broker = request_stop(cluster[number])
    others = {1, 2, 3} - {number}
    assert broker.node.controlled_shutdown.over
    assert states(cluster) == [(led if led != number else led % 3 + 1, others) for led in (1, 2, 3)]
    after = [state.leader_epoch for _, state in sorted(cluster.controller.node.context.image.topics["t"].states.items())]
    assert after == [epoch + (led == number) for led, epoch in zip((1, 2, 3), epochs, strict=True)]
    assert not broker.node.partitions.leaders


def test_a_controlled_shutdown_is_written_into_the_same_registration() -> None:
    cluster = a_cluster([1, 2, 3])
    epoch = cluster[1].node.context.epoch
    assert "in_controlled_shutdown" not in registration(cluster, 1)
    request_stop(cluster[1])
    assert registration(cluster, 1)["in_controlled_shutdown"] is True
    assert cluster[1].node.context.epoch == epoch == cluster[2].node.context.image.brokers[cluster[1].node.context.broker_id].epoch


def test_acks_all_produce_continues_during_a_controlled_shutdown() -> None:
    cluster = a_cluster([1, 2, 3])
    assert produce(cluster[1], batch(b"a")).error_code == 0
    request_stop(cluster[1])
    assert produce(cluster[1], batch(b"x")).error_code == errors.NotLeaderOrFollower.code
    sent = cluster[2].send(produce_request(batch(b"b"), timeout_ms=30_000), 12)
    cluster.pass_ms(1000)
    assert sent.answer.responses[0].partition_responses[0].error_code == 0
    cluster.stop(1)
    sent = cluster[2].send(produce_request(batch(b"c"), timeout_ms=30_000), 12)
    cluster.pass_ms(1000)
    assert sent.answer.responses[0].partition_responses[0].error_code == 0, "the stopped broker is not waited for"
    assert values(fetch(cluster[2]).records) == [b"a", b"b", b"c"]


def test_delayed_requests_are_answered_when_leadership_is_transferred() -> None:
    cluster = a_cluster([1, 2, 3])
    cluster.flushing = False
    sent = cluster[1].send(produce_request(batch(b"a"), timeout_ms=30_000), 12)
    request_stop(cluster[1])
    assert sent.waits, "it may yet be committed"
    cluster.pass_ms(DRAIN_MS + 100)
    assert sent.answer.responses[0].partition_responses[0].error_code == errors.NotLeaderOrFollower.code


def test_it_leads_again_when_it_is_back() -> None:
    cluster = a_cluster([1, 2, 3])
    request_stop(cluster[1])
    gone = cluster.stop(1)
    assert states(cluster) == [(2, {2, 3})]
    cluster.start(1, gone.texts, [disk.restart() for disk in gone.disks.values()])
    cluster.pass_ms(3000)
    assert states(cluster) == [(2, {1, 2, 3})] and "in_controlled_shutdown" not in registration(cluster, 1)
    requested = [ElectLeadersRequestTopicPartitions(topic="t", partitions=[0])]
    cluster.controller.ask(ElectLeadersRequest(topic_partitions=requested), 2)
    assert states(cluster) == [(1, {1, 2, 3})]


# Draining, for those who do not wait for followers.


def test_records_acknowledged_with_acks_1_are_replicated_before_another_broker_leads() -> None:
    """KAFKA-20554."""
    cluster = a_cluster([1, 2, 3])
    cluster.flushing = False
    assert produce(cluster[1], batch(b"a", b"b"), acks=1).error_code == 0
    broker = request_stop(cluster[1])
    cluster.pass_ms(300)
    assert states(cluster) == [(1, {1, 2, 3})] and not broker.node.controlled_shutdown.over, (
        "the followers have it in their page caches only"
    )
    cluster.flushing = True
    for one in cluster.brokers.values():
        one.flush()
    cluster.pass_ms(600)
    assert broker.node.controlled_shutdown.over and states(cluster) == [(2, {2, 3})]
    assert cluster[2].leader("t").log.end_offset == 2


def test_a_draining_leader_accepts_acks_all_and_refuses_other_produce_requests() -> None:
    cluster = a_cluster([1, 2, 3])
    cluster.flushing = False
    produce(cluster[1], batch(b"a"), acks=1)
    request_stop(cluster[1])
    assert produce(cluster[1], batch(b"b"), acks=1).error_code == errors.NotLeaderOrFollower.code
    sent = cluster[1].send(produce_request(batch(b"c"), timeout_ms=30_000), 12)
    assert sent.waits and cluster[1].leader("t").log.end_offset == 2
    assert cluster[1].send(produce_request(batch(b"d"), acks=0), 12).closed is not None


def test_draining_ends_when_followers_are_too_slow() -> None:
    cluster = a_cluster([1, 2, 3])
    cluster.cut_off(1)
    produce(cluster[1], batch(b"a"), acks=1)
    broker = request_stop(cluster[1])
    cluster.pass_ms(DRAIN_MS - 100)
    assert states(cluster) == [(1, {1, 2, 3})]
    cluster.pass_ms(200)
    assert broker.node.controlled_shutdown.over and states(cluster) == [(2, {2, 3})]


def test_a_partition_that_no_other_broker_can_lead_yet_stays_available() -> None:
    cluster = a_cluster([1, 2])
    cluster.cut_off(2)
    produce(cluster[1], batch(b"a"), acks=1)
    cluster.pass_ms(35_000)
    assert states(cluster) == [(1, {1})]
    request_stop(cluster[1])
    assert produce(cluster[1], batch(b"b"), acks=1).error_code == 0


# It is not taken back.


def test_a_broker_that_leaves_is_not_let_back_into_an_isr_however_well_it_follows() -> None:
    """KIP-841."""
    cluster = a_cluster([1, 2, 3])
    request_stop(cluster[1])
    produce(cluster[2], batch(b"a"), acks=1)
    cluster.pass_ms(5000)
    assert cluster[1].node.partitions.followers[T0].log.end_offset == 1
    assert states(cluster) == [(2, {2, 3})]


def test_the_controller_refuses_an_isr_with_a_broker_that_leaves_but_for_its_leader() -> None:
    cluster = a_cluster([1, 2, 3])
    request_stop(cluster[1])
    image = cluster.controller.node.context.image
    topic = image.topics["t"]
    members = [
        BrokerState(broker_id=broker, broker_epoch=image.brokers[cluster[broker].node.context.broker_id].epoch) for broker in (1, 2, 3)
    ]
    requested = AlterPartitionRequestPartition(
        partition_index=0, leader_epoch=topic.states[0].leader_epoch, new_isr_with_epochs=members, partition_epoch=topic.versions[0]
    )
    with pytest.raises(errors.IneligibleReplica, match="about to stop"):
        altered(image, topic, 2, requested, options=cluster.controller.node.context.topic_options("t"))
    requested.new_isr_with_epochs = members[1:]
    assert altered(image, topic, 2, requested, options=cluster.controller.node.context.topic_options("t")).isr == (2, 3)


def test_leader_does_not_wait_for_a_stopping_follower_after_a_rejected_isr_request() -> None:
    cluster = a_cluster([1, 2, 3])
    leader = cluster[1].leader("t")
    gone = cluster.kill(3)
    cluster.start(3, gone.texts, [disk.restart() for disk in gone.disks.values()])
    cluster.pass_ms(3000)
    request_stop(cluster[3])
    leader.isr_state.propose((1, 2, 3))
    assert leader.isr_state.maximal == {1, 2, 3}
    cluster.pass_ms(2000)
    assert leader.isr_state.maximal == {1, 2}, "it asked for the ISR that there is, and got it"


def test_no_partition_moves_to_a_broker_in_controlled_shutdown() -> None:
    cluster = a_cluster([1, 2, 3])
    request_stop(cluster[1])
    requested = [ElectLeadersRequestTopicPartitions(topic="t", partitions=[0])]
    answer = cluster.controller.ask(ElectLeadersRequest(topic_partitions=requested), 2)
    assert answer.replica_election_results[0].partition_result[0].error_code == errors.PreferredLeaderNotAvailable.code


def test_new_topics_go_to_brokers_that_stay_where_they_are_enough() -> None:
    cluster = a_cluster([1, 2, 3])
    request_stop(cluster[1])
    for name, factor in (("two", 2), ("three", 3)):
        cluster.topic(name, partitions=6, replicas=factor)
    topics = cluster.controller.node.context.image.topics
    assert all(1 not in replicas for replicas in topics["two"].replicas.values())
    assert all(1 not in (state.leader, *state.isr) for state in topics["three"].states.values())


def test_a_broker_in_controlled_shutdown_is_elected_if_no_other_replica_is_in_sync() -> None:
    cluster = a_cluster([1, 2], controlled_shutdown_max_retries="1", controlled_shutdown_retry_backoff_ms="60000")
    cluster.store_delivers = False
    cluster[2].handle(events.StopRequested())
    cluster[1].session.expire()
    cluster.brokers.pop(1).halted = "killed"
    cluster.store_delivers = True
    cluster.run()
    assert states(cluster) == [(2, {2})]


# How long it takes.


def test_a_broker_that_is_alone_may_stop_at_once() -> None:
    cluster = a_cluster([1], brokers=1)
    assert request_stop(cluster[1]).node.controlled_shutdown.over


def test_a_controlled_shutdown_does_not_wait_for_partitions_without_other_replicas() -> None:
    cluster = a_cluster([1], [2], [3])
    assert request_stop(cluster[1]).node.controlled_shutdown.over
    assert states(cluster) == [(1, {1}), (2, {2}), (3, {3})]


def test_a_replica_whose_log_directory_failed_is_not_waited_for() -> None:
    cluster = Cluster(brokers=2, disks=2)
    leader = cluster.topic(replicas=2)
    cluster.pass_ms(1500)
    (other,) = [broker for broker in cluster.brokers.values() if broker is not leader]
    other.handle(events.DirectoryFailed(directory=other.node.partitions.followers[T0].directory.root, reason="test"))
    cluster.run()
    assert states(cluster) == [(leader.broker_id, {leader.broker_id})]
    assert request_stop(leader).node.controlled_shutdown.over


def test_brokers_that_all_stop_do_not_wait_for_one_another() -> None:
    cluster = a_cluster([1, 2, 3], [2, 3, 1], [3, 1, 2])
    cluster.store_delivers = False
    for broker in cluster.brokers.values():
        broker.handle(events.StopRequested())
    cluster.store_delivers = True
    cluster.run()
    assert all(broker.node.controlled_shutdown.over for broker in cluster.brokers.values())
    assert all(state[0] in state[1] for state in states(cluster))


def test_it_waits_for_a_replica_that_catches_up() -> None:
    cluster = a_cluster([1, 2])
    cluster.cut_off(2)
    produce(cluster[1], batch(b"a"), acks=1)
    cluster.pass_ms(35_000)
    assert states(cluster) == [(1, {1})]
    broker = request_stop(cluster[1])
    assert not broker.node.controlled_shutdown.over
    cluster.cut.clear()
    cluster.pass_ms(3000)
    assert broker.node.controlled_shutdown.over and states(cluster) == [(2, {2})]


def test_patience_ends() -> None:
    cluster = a_cluster([1, 2], controlled_shutdown_max_retries="3", controlled_shutdown_retry_backoff_ms="2000")
    cluster.cut_off(2)
    produce(cluster[1], batch(b"a"), acks=1)
    cluster.pass_ms(35_000)
    broker = request_stop(cluster[1])
    cluster.pass_ms(5900)
    assert not broker.node.controlled_shutdown.over
    cluster.pass_ms(200)
    assert broker.node.controlled_shutdown.over and states(cluster) == [(1, {1})]


def test_broker_does_not_wait_for_an_unreachable_store() -> None:
    cluster = a_cluster([1, 2, 3])
    cluster[1].session.suspend()
    cluster.run()
    assert request_stop(cluster[1]).node.controlled_shutdown.over


def test_a_mark_that_the_store_did_not_take_is_written_again() -> None:
    cluster = a_cluster([1, 2, 3])
    cluster[1].session.fail_next(applied=False)
    broker = request_stop(cluster[1])
    assert not broker.node.controlled_shutdown.over
    cluster.pass_ms(5100)
    assert broker.node.controlled_shutdown.over and states(cluster) == [(2, {2, 3})]


def test_without_a_controller_patience_ends_too() -> None:
    cluster = a_cluster([1, 2, 3])
    controller_id = cluster.controller
    others = [broker for broker in cluster.brokers.values() if broker is not controller_id]
    controller_id.halted = "it does not answer, and its session lives"
    broker = request_stop(others[0])
    cluster.pass_ms(14_900)
    assert not broker.node.controlled_shutdown.over
    cluster.pass_ms(200)
    assert broker.node.controlled_shutdown.over


def test_the_next_controller_continues_a_controlled_shutdown() -> None:
    cluster = a_cluster([1, 2, 3], [2, 3, 1], [3, 1, 2])
    controller_id = cluster.controller.broker_id
    number = next(broker for broker in cluster.brokers if broker != controller_id)
    cluster[controller_id].halted = "killed"
    broker = request_stop(cluster[number])
    assert not broker.node.controlled_shutdown.over
    cluster.kill(controller_id)
    assert broker.node.controlled_shutdown.over
    (stays,) = {1, 2, 3} - {controller_id, number}
    assert states(cluster) == [(stays, {stays})] * 3


def test_a_disabled_controlled_shutdown_takes_no_time_and_moves_nothing() -> None:
    cluster = a_cluster([1, 2, 3], controlled_shutdown_enable="false")
    assert request_stop(cluster[1]).node.controlled_shutdown.over
    assert states(cluster) == [(1, {1, 2, 3})]


def test_controller_shuts_down_in_a_controlled_way_and_another_is_elected() -> None:
    cluster = a_cluster([1, 2, 3], [2, 3, 1], [3, 1, 2])
    controller_id = cluster.controller.broker_id
    request_stop(cluster[controller_id])
    cluster.stop(controller_id)
    assert cluster.controller.broker_id != controller_id
    assert all(controller_id not in (leader, *isr) for leader, isr in states(cluster))


# Clean stops.


def test_a_clean_stop_writes_down_the_high_watermarks_of_followers_too() -> None:
    cluster = a_cluster([1, 2, 3])
    produce(cluster[1], batch(b"a", b"b"))
    cluster.pass_ms(1000)
    gone = cluster.stop(3)
    back = cluster.start(3, gone.texts, [disk.restart() for disk in gone.disks.values()])
    assert back.node.context.directories[0].high_watermarks[T0] == 2


def test_registration_has_controlled_shutdown_only_during_it() -> None:
    plain = layout.BrokerRegistration(host="h", port=1, endpoints=("PLAINTEXT://h:1",), timestamp_ms=1)
    leaves = layout.BrokerRegistration(host="h", port=1, endpoints=("PLAINTEXT://h:1",), timestamp_ms=1, leaving=True)
    assert layout.decode_broker(layout.encode_broker(leaves)) == leaves and layout.decode_broker(layout.encode_broker(plain)) == plain
    assert b"shutdown" not in layout.encode_broker(plain)
