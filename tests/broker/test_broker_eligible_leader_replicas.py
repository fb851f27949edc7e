"""Eligible leader replicas: which replicas may lead after they left the ISR, and what is committed meanwhile. Source: KIP-966."""

import pytest
from cluster import Broker, Cluster, batch, fetch, produce, produce_request, values

from ottla.base.ids import BrokerId, LeaderEpoch, TopicId, TopicPartition
from ottla.base.units import SECOND_MS
from ottla.broker.controller.alter_partition import altered
from ottla.broker.controller.election import election, preferred_can_lead
from ottla.broker.metadata.image import Image, Registration, Topic
from ottla.log.options import TopicOptions
from ottla.store.layout import PartitionState
from ottla.wire import errors
from ottla.wire.messages.alter_partition import AlterPartitionRequestPartition, BrokerState
from ottla.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from ottla.wire.messages.incremental_alter_configs import AlterableConfig, AlterConfigsResource, IncrementalAlterConfigsRequest

T0 = TopicPartition("t", 0)


def a_cluster(**configs: str) -> tuple[Cluster, Broker]:
    """Three brokers, and the leader of a topic of three replicas of which two must be in sync."""
    cluster = Cluster(brokers=3)
    named = {"min.insync.replicas": "2", **{name.replace("_", "."): value for name, value in configs.items()}}
    leader = cluster.topic(replicas=3, configs=named)
    cluster.pass_ms(1500)
    return cluster, leader


def state_of(cluster: Cluster) -> PartitionState:
    state = cluster.controller.node.context.image.state(T0)
    assert state is not None
    return state


def back(cluster: Cluster, gone: Broker) -> Broker:
    return cluster.start(gone.broker_id, gone.texts, [disk.restart() for disk in gone.disks.values()])


def described(cluster: Cluster) -> tuple[list[int], list[int]]:
    answer = cluster.controller.ask(DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t")], cursor=None), 0)
    partition = answer.topics[0].partitions[0]
    return partition.eligible_leader_replicas, partition.last_known_elr


# What the controller decides.


def a_state(leader: int, isr: dict[int, int], elr: dict[int, int] | None = None, **fields: object) -> PartitionState:
    elr = elr or {}
    return PartitionState(
        leader=leader,
        leader_epoch=LeaderEpoch(5),
        isr=tuple(isr),
        isr_epochs=tuple(isr.values()),
        elr=tuple(elr),
        elr_epochs=tuple(elr.values()),
        controller_epoch=1,
        **fields,  # type: ignore[arg-type]
    )


def an_image(
    state: PartitionState,
    alive: dict[int, int],
    *,
    impaired: tuple[int, ...] = (),
    offline: tuple[int, ...] = (),
    full: tuple[int, ...] = (),
    leaving: tuple[int, ...] = (),
    fenced: tuple[int, ...] = (),
) -> Image:
    image = Image()
    image.controller_epoch = 9
    for broker, epoch in alive.items():
        found = image.brokers[BrokerId(broker)] = Registration(BrokerId(broker), "h", 1, None, epoch)
        found.impaired = frozenset([T0]) if broker in impaired else frozenset()
        found.offline = frozenset([T0]) if broker in offline else frozenset()
        found.full = frozenset([T0]) if broker in full else frozenset()
        found.fenced = broker in fenced
        found.leaving = broker in leaving or broker in fenced
    image.topics["t"] = Topic("t", TopicId(bytes(16)), {0: (1, 2, 3)}, 0, {0: state}, {0: 0})
    return image


def elected(image: Image, **settings: str) -> PartitionState | None:
    options = TopicOptions.of({"min.insync.replicas": "2", **{name.replace("_", "."): value for name, value in settings.items()}})
    return election(image, image.topics["t"], 0, options=options)


def test_replica_that_leaves_an_isr_below_min_insync_replicas_stays_eligible() -> None:
    after = elected(an_image(a_state(1, {1: 7, 2: 7, 3: 7}), {1: 7}))
    assert after is not None and (after.leader, after.isr) == (1, (1,))
    assert dict(zip(after.elr, after.elr_epochs, strict=True)) == {2: 7, 3: 7}


def test_no_replica_is_eligible_beside_an_isr_of_min_insync_replicas() -> None:
    after = elected(an_image(a_state(1, {1: 7, 2: 7, 3: 7}), {1: 7, 2: 7}))
    assert after is not None and (after.isr, after.elr) == ((1, 2), ())


def test_an_eligible_replica_leads_when_the_isr_is_gone() -> None:
    after = elected(an_image(a_state(1, {1: 7}, {2: 7}), {2: 7, 3: 7}))
    assert after is not None and (after.leader, after.isr, after.leader_epoch, after.recovering) == (2, (2,), 6, False)
    assert dict(zip(after.elr, after.elr_epochs, strict=True)) == {1: 7}, "what the last leader had committed it still has"


@pytest.mark.parametrize("isr", [{9: 7}, {9: 7, 2: 7}])
def test_broker_that_is_no_replica_never_leads(isr: dict[int, int]) -> None:
    """A state may arrive before its assignment; a broker that is not assigned any more has deleted its log."""
    image = an_image(a_state(9, isr), {9: 7, 2: 7, 3: 7})
    after = elected(image)
    assert after is not None and (after.leader, after.leader_epoch) == (2 if 2 in isr else -1, 6)
    image.topics["t"].states[0] = after
    assert elected(image) is None, "and it stays so"


def test_the_last_leader_does_not_recover_what_it_is_no_replica_of() -> None:
    """It was being added, and the reassignment was cancelled while no replica was alive."""
    image = an_image(a_state(-1, {1: 7}, last_leader=9), {1: 8, 9: 7})
    after = elected(image, write_caching="true")
    assert after is None or after.leader != 9


def test_the_only_replica_leads_an_unclean_partition_although_it_knows_that_records_are_missing() -> None:
    """Only a state with this mark makes the broker lead; any other would be decided again forever."""
    image = an_image(a_state(1, {1: 7}), {1: 7}, impaired=(1,))
    image.topics["t"].replicas[0] = (1,)
    after = elected(image, unclean_leader_election_enable="true")
    assert after is not None and (after.leader, after.recovering) == (1, True)
    image.topics["t"].states[0] = after
    assert elected(image, unclean_leader_election_enable="true") is None


def test_an_isr_member_is_elected_before_an_eligible_replica() -> None:
    after = elected(an_image(a_state(1, {3: 7, 1: 7}, {2: 7}), {2: 7, 3: 7}))
    assert after is not None and (after.leader, after.isr, sorted(after.elr)) == (3, (3,), [1, 2])


@pytest.mark.parametrize(
    ("settings", "clean_since", "eligible"),
    [({}, -1, True), ({"write_caching": "true"}, -1, False), ({"write_caching": "true"}, 7, True), ({"write_caching": "true"}, 8, False)],
    ids=[
        "with fsync all that was acknowledged is on disk",
        "under write caching a restart may have cost records",
        "but not after a clean stop",
        "of the very life in which it left",
    ],
)
def test_a_returned_replica_is_eligible_if_its_log_is_complete(settings: dict[str, str], clean_since: int, eligible: bool) -> None:
    image = an_image(a_state(1, {1: 7}, {2: 7}), {1: 7, 2: 9})
    image.brokers[BrokerId(2)].clean_since = clean_since
    after = elected(image, **settings)
    if eligible:
        assert after is None, "nothing changes"
    else:
        assert after is not None and (after.isr, after.elr, after.last_known_elr, after.leader_epoch) == ((1,), (), (2,), 5)


def test_without_a_certainly_complete_replica_the_last_known_leader_is_elected_and_recovers() -> None:
    """As in Kafka, whose word for it is a balanced recovery."""
    state = a_state(-1, {1: 7, 2: 7}, last_leader=2)
    assert elected(an_image(state, {2: 8}), write_caching="true") is None, "the other may come back with everything"
    after = elected(an_image(state, {1: 8, 2: 8}), write_caching="true")
    assert after is not None and (after.leader, after.isr, after.elr, after.recovering) == (2, (2,), (), True)


def test_a_replica_that_knows_that_records_are_missing_does_not_lead() -> None:
    state = a_state(-1, {1: 7}, last_leader=1)
    assert elected(an_image(state, {1: 8, 2: 7, 3: 7}, impaired=(1,))) is None
    after = elected(an_image(state, {1: 8, 2: 7, 3: 7}, impaired=(1,)), unclean_leader_election_enable="true")
    assert after is not None and (after.leader, after.recovering) == (2, True), "rather one that knows of nothing missing"
    after = elected(an_image(state, {1: 8}, impaired=(1,)), unclean_leader_election_enable="true")
    assert after is not None and (after.leader, after.recovering) == (1, True)


def test_a_leader_whose_log_is_damaged_hands_over() -> None:
    after = elected(an_image(a_state(1, {1: 7, 2: 7}), {1: 7, 2: 7}, impaired=(1,)))
    assert after is not None and (after.leader, after.isr, after.elr) == (2, (2,), ()), "nor is it eligible"


def test_a_leader_whose_log_directory_failed_hands_over() -> None:
    after = elected(an_image(a_state(1, {1: 7, 2: 7}), {1: 7, 2: 7}, offline=(1,)))
    assert after is not None and (after.leader, after.isr) == (2, (2,))
    state = a_state(1, {1: 7})
    after = elected(an_image(state, {1: 7, 2: 7}, offline=(1,)))
    assert after is not None and (after.leader, after.isr, after.last_leader) == (-1, (1,), 1)


def requested(isr: dict[int, int], *, recovering: bool = False) -> AlterPartitionRequestPartition:
    members = [BrokerState(broker_id=broker, broker_epoch=epoch) for broker, epoch in isr.items()]
    return AlterPartitionRequestPartition(
        partition_index=0, leader_epoch=5, partition_epoch=0, new_isr_with_epochs=members, leader_recovery_state=int(recovering)
    )


def changed(state: PartitionState, isr: dict[int, int], *, recovering: bool = False, impaired: tuple[int, ...] = ()) -> PartitionState:
    image = an_image(state, {1: 7, 2: 7, 3: 7}, impaired=impaired)
    options = TopicOptions.of({"min.insync.replicas": "2"})
    return altered(image, image.topics["t"], 1, requested(isr, recovering=recovering), options=options)


def test_a_leader_that_shrinks_the_isr_too_far_makes_those_that_leave_eligible() -> None:
    after = changed(a_state(1, {1: 7, 2: 7, 3: 7}), {1: 7})
    assert (after.isr, after.elr) == ((1,), (2, 3))
    after = changed(a_state(1, {1: 7}, {2: 7, 3: 7}, last_known_elr=()), {1: 7, 3: 7})
    assert (after.isr, after.elr, after.elr_epochs, after.last_known_elr) == ((1, 3), (), (), ())


def test_ineligible_replica_does_not_join_the_isr() -> None:
    with pytest.raises(errors.IneligibleReplica):
        changed(a_state(1, {1: 7}), {1: 7, 2: 7}, impaired=(2,))


def test_the_end_of_recovery_is_written_down_once() -> None:
    """Source: KIP-704."""
    state = a_state(1, {1: 7}, recovering=True)
    assert changed(state, {1: 7}, recovering=True).recovering
    assert not changed(state, {1: 7}).recovering
    with pytest.raises(errors.InvalidRequest):
        changed(state, {1: 7, 2: 7}, recovering=True)
    with pytest.raises(errors.InvalidRequest):
        changed(a_state(1, {1: 7}), {1: 7}, recovering=True)


# What comes of it.


def test_the_last_to_leave_leads_without_loss_when_the_leader_is_gone_for_good() -> None:
    cluster, leader = a_cluster()
    produce(leader, batch(b"a"))
    first, last = [broker for number, broker in cluster.brokers.items() if number != leader.broker_id]
    cluster.kill(first.broker_id)
    produce(leader, batch(b"b"))
    cluster.kill(last.broker_id)
    assert state_of(cluster).elr == (last.broker_id,) and described(cluster) == ([last.broker_id], [])
    assert produce(leader, batch(b"never"), acks=1).error_code == 0
    cluster.kill(leader.broker_id)
    back(cluster, first)
    assert state_of(cluster).leader == -1, "it has not seen all that was acknowledged"
    now = back(cluster, last)
    cluster.pass_ms(3000)
    assert (state_of(cluster).leader, state_of(cluster).recovering) == (now.broker_id, False)
    assert values(fetch(now).records) == [b"a", b"b"]


def lower_min_insync(cluster: Cluster) -> None:
    change = AlterableConfig(name="min.insync.replicas", config_operation=0, value="1")
    request = IncrementalAlterConfigsRequest(resources=[AlterConfigsResource(resource_type=2, resource_name="t", configs=[change])])
    assert cluster.controller.ask(request, 1).responses[0].error_code == 0


def test_nothing_is_committed_while_a_replica_outside_of_the_isr_may_be_elected() -> None:
    """Not even by a leader that already knows that a smaller ISR is enough."""
    cluster, leader = a_cluster()
    for number in [number for number in cluster.brokers if number != leader.broker_id]:
        cluster.kill(number)
    led = leader.leader("t")
    assert led.isr_state.elr and produce(leader, batch(b"a"), acks=1).error_code == 0
    led.options = TopicOptions.of({"min.insync.replicas": "1"})
    sent = leader.send(produce_request(batch(b"b"), timeout_ms=60 * SECOND_MS), 12)
    cluster.pass_ms(2000)
    assert sent.waits and led.high_watermark == 0
    lower_min_insync(cluster)
    cluster.pass_ms(1000)
    assert state_of(cluster).elr == () and led.high_watermark == 2
    assert sent.answer is not None and sent.answer.responses[0].partition_responses[0].error_code == 0


def test_a_large_enough_isr_ends_eligibility() -> None:
    cluster, leader = a_cluster()
    gone = [cluster.kill(number) for number in list(cluster.brokers) if number != leader.broker_id]
    assert len(state_of(cluster).elr) == 1
    back(cluster, gone[0])
    cluster.pass_ms(3000)
    assert len(state_of(cluster).isr) == 2 and state_of(cluster).elr == ()
    assert produce(leader, batch(b"a")).error_code == 0


def test_an_unclean_election_needs_a_setting_and_is_reported() -> None:
    cluster, leader = a_cluster(min_insync_replicas="1")
    (other, *_) = [broker for number, broker in cluster.brokers.items() if number != leader.broker_id]
    for number in [number for number in cluster.brokers if number != leader.broker_id]:
        cluster.kill(number)
    produce(leader, batch(b"lost"))
    cluster.kill(leader.broker_id)
    other = back(cluster, other)
    assert state_of(cluster).leader == -1
    answer = cluster.controller.ask(DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t")], cursor=Cursor(topic_name="t")), 0)
    assert answer.topics[0].partitions[0].last_known_elr == [leader.broker_id], "whom to wait for"
    change = AlterableConfig(name="unclean.leader.election.enable", config_operation=0, value="true")
    request = IncrementalAlterConfigsRequest(resources=[AlterConfigsResource(resource_type=2, resource_name="t", configs=[change])])
    cluster.flushing = False
    assert cluster.controller.ask(request, 1).responses[0].error_code == 0
    assert state_of(cluster).leader == other.broker_id
    assert any("unclean election" in warning for warning in other.warnings)
    cluster.flushing = True
    other.flush()
    cluster.pass_ms(2000)
    assert not state_of(cluster).recovering, "the leader has settled what is left"
    assert produce(other, batch(b"new")).error_code == 0


# Fenced brokers.


@pytest.mark.parametrize(
    ("isr", "elr", "alive", "leader"),
    [
        # Others of the ISR lead, and the fenced broker leaves it.
        ({1: 7, 2: 7, 3: 7}, {}, {1: 7, 2: 7, 3: 7}, 2),
        # Alone in the ISR it commits nothing while others are eligible: the first of them that is intact leads.
        ({1: 7}, {2: 7, 3: 7}, {1: 7, 2: 7, 3: 7}, 2),
        ({1: 7}, {2: 7, 3: 7}, {1: 7, 3: 7}, 3),
        # No other replica has all that was committed for sure.
        ({1: 7}, {}, {1: 7, 2: 7, 3: 7}, None),
        ({1: 7}, {2: 7}, {1: 7, 3: 7}, None),
    ],
)
def test_a_fenced_leader_is_replaced_by_a_replica_that_has_all_that_was_committed(
    isr: dict[int, int], elr: dict[int, int], alive: dict[int, int], leader: int | None
) -> None:
    image = an_image(a_state(1, isr, elr), alive, fenced=(1,))
    after = elected(image)
    assert (after and after.leader) == leader
    if after is not None:
        assert 1 not in after.isr
        image.topics["t"].states[0] = after
        assert elected(image) is None, "and it stays so"


def test_a_replica_that_lost_its_page_cache_does_not_replace_a_fenced_leader_under_write_caching() -> None:
    image = an_image(a_state(1, {1: 7}, {2: 7}), {1: 7, 2: 8}, fenced=(1,))
    after = elected(image, write_caching="true")
    assert after is not None and (after.leader, after.isr, after.elr, after.last_known_elr) == (1, (1,), (), (2,))


# Full disks, and brokers about to stop.


@pytest.mark.parametrize(
    ("full", "leaving", "leader", "isr"),
    [
        ((), (), None, None),
        ((1,), (), 2, (1, 2, 3)),
        ((1, 2), (), 3, (1, 2, 3)),
        ((1, 2, 3), (), None, None),
        ((2,), (1,), 3, (2, 3)),
        ((2, 3), (1,), 2, (2, 3)),
    ],
)
def test_a_replica_without_room_leads_only_where_none_has_any(
    full: tuple[int, ...], leaving: tuple[int, ...], leader: int | None, isr: tuple[int, ...] | None
) -> None:
    everybody = {1: 7, 2: 7, 3: 7}
    image = an_image(a_state(1, everybody), everybody, full=full, leaving=leaving)
    after = elected(image)
    assert (after and (after.leader, after.isr, after.leader_epoch)) == (leader and (leader, isr, 6))
    if after is not None:
        image.topics["t"].states[0] = after
        assert elected(image) is None, "and it stays so"


def test_the_preferred_replica_leads_again_only_when_it_has_room() -> None:
    everybody = {1: 7, 2: 7, 3: 7}
    for full, able in (((1,), False), ((), True)):
        image = an_image(a_state(2, everybody), everybody, full=full)
        assert preferred_can_lead(image, image.topics["t"], 0) is able


@pytest.mark.parametrize(
    ("fields", "leader"),
    [
        ({}, 1),
        ({"leaving": (1,)}, 2),
        ({"leaving": (1,), "full": (2,)}, 2),
        ({"full": (1, 2)}, 1),
        ({"impaired": (2,), "leaving": (1,)}, 1),
    ],
)
def test_an_unclean_election_avoids_brokers_in_shutdown_and_with_full_disks(fields: dict[str, tuple[int, ...]], leader: int) -> None:
    """But rather these than one that knows of missing records."""
    image = an_image(a_state(-1, {3: 7}), {1: 8, 2: 8}, **fields)
    after = elected(image, unclean_leader_election_enable="true")
    assert after is not None and (after.leader, after.recovering) == (leader, True)
