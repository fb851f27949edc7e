"""Ineligible replicas: failed log directories, missing logs, missing or damaged records."""

import json
from random import Random

import pytest
from cluster import Broker, Cluster, batch, fetch, produce, values
from msgspec.structs import replace

from ottla.base.ids import LeaderEpoch, TopicPartition
from ottla.base.ports import Op
from ottla.base.units import SECOND_MS
from ottla.broker import events
from ottla.broker.replica.follower import Follower
from ottla.sim.disk import SimDisk
from ottla.store import layout
from ottla.store.layout import PartitionState
from ottla.wire import errors
from ottla.wire.messages.incremental_alter_configs import AlterableConfig, AlterConfigsResource, IncrementalAlterConfigsRequest
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

T0 = TopicPartition("t", 0)
LOG = "t-0/00000000000000000000.log"


def a_cluster(replicas: int = 3, *, disks: int = 1, records: int = 3, **configs: str) -> tuple[Cluster, Broker]:
    """Three brokers, and the leader of a topic that holds a few records, one in each batch."""
    cluster = Cluster(brokers=3, disks=disks)
    leader = cluster.topic(replicas=replicas, configs={name.replace("_", "."): value for name, value in configs.items()})
    cluster.pass_ms(1500)
    for number in range(records):
        assert produce(leader, batch(b"%d" % number)).error_code == 0
    cluster.pass_ms(1000)
    return cluster, leader


def state_of(cluster: Cluster) -> PartitionState:
    state = cluster.controller.node.context.image.state(T0)
    assert state is not None
    return state


def others(cluster: Cluster, leader: Broker) -> list[Broker]:
    """Those that follow."""
    return [broker for broker in cluster.brokers.values() if T0 in broker.node.partitions.followers and broker is not leader]


def start(cluster: Cluster, gone: Broker, *disks: SimDisk) -> Broker:
    return cluster.start(gone.broker_id, gone.texts, list(disks) or [disk.restart() for disk in gone.disks.values()])


def empty(cluster: Cluster, name: str = "disk0") -> SimDisk:
    return SimDisk(name, now_ms=lambda: cluster.wall_ms)


def stop(cluster: Cluster, broker: Broker) -> Broker:
    """A clean stop."""
    node = broker.node
    broker._perform(node.stop(cluster.now_ms))
    cluster.run()
    for directory in node.context.directories:
        marks = node.partitions.high_watermarks(directory)
        assert directory.close(marks, cluster.wall_ms, broker_epoch=node.context.epoch or -1, clean_since=node.registration.clean_since)
    return cluster.kill(broker.broker_id)


def registration(cluster: Cluster, broker: int) -> dict[str, object]:
    return dict(json.loads(cluster.store.tree.nodes[layout.broker(broker)].data))


def allow_losing_records(cluster: Cluster) -> None:
    change = AlterableConfig(name="unclean.leader.election.enable", config_operation=0, value="true")
    request = IncrementalAlterConfigsRequest(resources=[AlterConfigsResource(resource_type=2, resource_name="t", configs=[change])])
    assert cluster.controller.ask(request, 1).responses[0].error_code == 0


def held(broker: Broker) -> list[bytes | None]:
    replica = broker.node.partitions.replica(T0)
    assert replica is not None
    return values(replica.log.read(replica.log.start_offset))


# Log directories that fail.


def test_a_failed_log_directory_hands_its_leaders_to_other_brokers() -> None:
    cluster, leader = a_cluster(disks=2)
    leader.handle(events.DirectoryFailed(directory=leader.leader("t").directory.root, reason="test"))
    cluster.run()
    state = state_of(cluster)
    assert state.leader not in (-1, leader.broker_id) and leader.broker_id not in state.isr and leader.halted is None
    now = cluster.leading("t")
    assert produce(now, batch(b"more")).error_code == 0
    for broker in cluster.brokers.values():
        found = broker.ask(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 12).topics[0].partitions[0]
        assert (found.leader_id, found.offline_replicas) == (now.broker_id, [leader.broker_id]), "every broker knows"


def test_failed_log_directory_is_described_as_in_kafka() -> None:
    cluster, leader = a_cluster(disks=2)
    follower = others(cluster, leader)[0]
    cluster.store_delivers = False
    follower.handle(events.DirectoryFailed(directory=follower.node.partitions.followers[T0].directory.root, reason="test"))
    reported = [path for path in cluster.store.tree.nodes if path.startswith(layout.LOG_DIR_EVENTS + "/")]
    assert reported == [layout.log_dir_event(0)]
    assert cluster.store.tree.nodes[reported[0]].data == layout.encode_log_dir_event(follower.broker_id)
    assert registration(cluster, follower.broker_id)["offline_replicas"] == {"t": [0]}
    cluster.store_delivers = True
    cluster.run()
    assert reported[0] not in cluster.store.tree.nodes, "the controller has heeded it"
    assert follower.broker_id not in state_of(cluster).isr, "without waiting for it to lag"


def test_a_new_controller_knows_which_replicas_are_offline() -> None:
    cluster, _ = a_cluster(disks=2)
    lost = next(broker for broker in cluster.brokers.values() if broker is not cluster.controller)
    replica = lost.node.partitions.replica(T0)
    assert replica is not None
    lost.handle(events.DirectoryFailed(directory=replica.directory.root, reason="test"))
    cluster.run()
    cluster.kill(cluster.controller.broker_id)
    cluster.pass_ms(1000)
    assert lost.broker_id not in state_of(cluster).isr and state_of(cluster).leader != lost.broker_id


def test_broker_that_cannot_report_a_failed_log_directory_stops() -> None:
    cluster, leader = a_cluster(disks=2)
    cluster.store_delivers = False
    leader.handle(events.DirectoryFailed(directory=leader.leader("t").directory.root, reason="test"))
    cluster.pass_ms(29 * SECOND_MS)
    assert leader.halted is None
    cluster.pass_ms(2 * SECOND_MS)
    assert leader.halted is not None and "log.dir.failure.timeout.ms" in leader.halted


def test_a_leader_that_is_alone_with_a_failed_directory_leads_again_when_it_works() -> None:
    cluster, leader = a_cluster(replicas=1, disks=2)
    leader.handle(events.DirectoryFailed(directory=leader.leader("t").directory.root, reason="test"))
    cluster.run()
    assert state_of(cluster).leader == -1 and state_of(cluster).isr == (leader.broker_id,)
    now = cluster.restart(leader.broker_id)
    assert values(fetch(now).records) == [b"0", b"1", b"2"]


# Lost logs.


def alone_in_the_isr(cluster: Cluster, leader: Broker) -> list[Broker]:
    """The others are down, and the leader has continued without them."""
    gone = [cluster.kill(broker.broker_id) for broker in others(cluster, leader)]
    assert produce(leader, batch(b"last")).error_code == 0
    return gone


@pytest.mark.parametrize("restarts", [0, 1, 2], ids=["at once", "after another restart", "after some"])
def test_a_broker_with_an_empty_disk_does_not_lead_and_no_record_is_lost(restarts: int) -> None:
    cluster, leader = a_cluster()
    gone = alone_in_the_isr(cluster, leader)
    broken = cluster.kill(leader.broker_id)
    now = start(cluster, broken, empty(cluster))
    for _ in range(restarts):
        now = cluster.restart(now.broker_id)
    assert any("lacks records that it had" in warning and "unclean.leader.election.enable" in warning for warning in now.warnings)
    for broker in gone:
        start(cluster, broker)
    cluster.pass_ms(3000)
    assert state_of(cluster).leader == -1, "the record that only it acknowledged is lost: an operator has to give it up"
    assert all(held(cluster[broker.broker_id]) == [b"0", b"1", b"2"] for broker in gone), "no replica truncated its log"
    allow_losing_records(cluster)
    cluster.pass_ms(3000)
    state = state_of(cluster)
    assert state.leader in [broker.broker_id for broker in gone] and not state.recovering
    assert len(state.isr) == 3 and held(now) == [b"0", b"1", b"2"]


def test_an_empty_disk_waits_for_one_that_is_eligible() -> None:
    cluster, leader = a_cluster(min_insync_replicas="2")
    first, last = [cluster.kill(broker.broker_id) for broker in others(cluster, leader)]
    broken = cluster.kill(leader.broker_id)
    start(cluster, broken, empty(cluster))
    start(cluster, first)
    assert state_of(cluster).leader == -1
    start(cluster, last)
    cluster.pass_ms(3000)
    assert state_of(cluster).leader == last.broker_id and len(state_of(cluster).isr) == 3
    assert [held(broker) for broker in cluster.brokers.values()] == [[b"0", b"1", b"2"]] * 3


def test_a_partition_directory_that_vanished_is_noticed() -> None:
    cluster, leader = a_cluster()
    cluster.pass_ms(61 * SECOND_MS)
    gone = alone_in_the_isr(cluster, leader)
    broken = cluster.kill(leader.broker_id)
    broken.disks["disk0"].remove_tree("t-0")
    start(cluster, broken)
    start(cluster, gone[0])
    cluster.pass_ms(3000)
    assert state_of(cluster).leader == -1 and held(cluster[gone[0].broker_id]) == [b"0", b"1", b"2"]


def test_a_directory_that_is_missing_is_noticed_and_an_old_copy_that_returns_is_not_believed() -> None:
    cluster, leader = a_cluster(disks=2)
    broken = cluster.kill(leader.broker_id)
    lost, kept = sorted(broken.disks.values(), key=lambda disk: "t-0" not in disk.listdir())
    assert "t-0" in lost.listdir() and "t-0" not in kept.listdir()
    now = start(cluster, broken, kept.restart())
    cluster.pass_ms(3000)
    assert len(state_of(cluster).isr) == 3
    produce(cluster.leading("t"), batch(b"more"))
    cluster.pass_ms(1000)
    again = cluster.kill(now.broker_id)
    start(cluster, again, lost.restart(), *(disk.restart() for disk in again.disks.values()))
    cluster.pass_ms(3000)
    assert held(cluster[again.broker_id]) == [b"0", b"1", b"2", b"more"]
    replica = cluster[again.broker_id].node.partitions.replica(T0)
    assert replica is not None and replica.directory.root == kept.root and len(state_of(cluster).isr) == 3
    (aside,) = [name for name in cluster[again.broker_id].disks[lost.root].listdir() if name.endswith("-stray")]
    assert any("set aside" in warning and aside in warning for warning in cluster[again.broker_id].warnings), "it is not thrown away"


def test_a_log_that_was_never_on_disk_is_not_taken_for_lost() -> None:
    """The power went soon after the topic was created: nothing of it can have been acknowledged."""
    cluster = Cluster(brokers=3)
    cluster.flushing = False
    leader = cluster.topic(replicas=2)
    gone = [cluster.kill(number) for number in list(cluster.brokers)]
    cluster.flushing = True
    for broker in gone:
        start(cluster, broker, *(disk.crash(Random(1)) for disk in broker.disks.values()))
    cluster.pass_ms(3000)
    assert state_of(cluster).leader >= 0 and leader.halted == "killed"
    assert produce(cluster.leading("t"), batch(b"a")).error_code == 0


def test_a_partition_with_one_replica_starts_empty_because_no_other_replica_exists() -> None:
    cluster, leader = a_cluster(replicas=1)
    broken = cluster.kill(leader.broker_id)
    now = start(cluster, broken, empty(cluster))
    assert now.leader("t").log.end_offset == 0 and T0 in now.node.partitions.anew
    assert "impaired_replicas" not in registration(cluster, now.broker_id)
    assert "missing-checkpoint" not in now.disks["disk0"].listdir("t-0")


def test_the_only_log_that_is_out_of_sight_is_waited_for() -> None:
    cluster, leader = a_cluster(replicas=1, disks=2)
    broken = cluster.kill(leader.broker_id)
    lost, kept = sorted(broken.disks.values(), key=lambda disk: "t-0" not in disk.listdir())
    now = start(cluster, broken, kept.restart())
    assert state_of(cluster).leader == -1 and T0 in now.node.partitions.offline and "t-0" not in now.disks[kept.root].listdir()
    again = cluster.kill(now.broker_id)
    now = start(cluster, again, lost.restart(), *(disk.restart() for disk in again.disks.values()))
    assert values(fetch(now).records) == [b"0", b"1", b"2"]


def test_the_only_log_is_not_set_aside_for_an_empty_one() -> None:
    """The disk was replaced, the partition started empty, and then the old disk was found again."""
    cluster, leader = a_cluster(replicas=1, disks=2)
    broken = cluster.kill(leader.broker_id)
    lost, kept = sorted(broken.disks.values(), key=lambda disk: "t-0" not in disk.listdir())
    now = start(cluster, broken, kept.restart(), empty(cluster, "new"))
    assert now.leader("t").log.end_offset == 0
    again = cluster.kill(now.broker_id)
    now = start(cluster, again, lost.restart(), *(disk.restart() for disk in again.disks.values()))
    assert values(fetch(now).records) == [b"0", b"1", b"2"]


# Records that the medium changed.


def test_a_log_that_recovery_had_to_cut_below_what_was_on_disk_does_not_lead() -> None:
    cluster, leader = a_cluster()
    cluster.pass_ms(61 * SECOND_MS)
    gone = alone_in_the_isr(cluster, leader)
    assert leader.leader("t").log.recovery_point == 4
    broken = cluster.kill(leader.broker_id)
    disk = broken.disks["disk0"].restart()
    for position in (100, 170, 240):
        disk.flip_bit(LOG, position)
    start(cluster, broken, disk)
    start(cluster, gone[0])
    cluster.pass_ms(2000)
    assert state_of(cluster).leader == -1 and held(cluster[gone[0].broker_id]) == [b"0", b"1", b"2"]
    cluster.restart(leader.broker_id)
    assert state_of(cluster).leader == -1, "what one start found the next one knows"


def test_a_follower_whose_log_recovery_cut_copies_it_again() -> None:
    cluster, leader = a_cluster()
    cluster.pass_ms(61 * SECOND_MS)
    follower = others(cluster, leader)[0]
    broken = cluster.kill(follower.broker_id)
    disk = broken.disks["disk0"].restart()
    disk.flip_bit(LOG, 100)
    now = start(cluster, broken, disk)
    cluster.pass_ms(3000)
    assert held(now) == [b"0", b"1", b"2"] and now.broker_id in state_of(cluster).isr
    assert "missing-checkpoint" not in now.disks["disk0"].listdir("t-0")
    assert "impaired_replicas" not in registration(cluster, now.broker_id)


def damage(broker: Broker, offset: int) -> None:
    """Of the record at this offset a bit is another now."""
    replica = broker.node.partitions.replica(T0)
    assert replica is not None
    place = replica.log.locate(offset, max_bytes=1, upto=replica.log.end_offset)
    assert place is not None
    broker.disks["disk0"].flip_bit(LOG, place.position + 62)


def test_a_follower_that_meets_damage_leaves_the_isr_cuts_back_and_copies() -> None:
    cluster, leader = a_cluster()
    follower = others(cluster, leader)[0]
    replica = follower.node.partitions.followers[T0]
    damage(follower, 1)
    follower.node.scrubs.look_at(replica, 0, whole=True)
    follower._perform(follower.node.context.effects)
    cluster.run()
    assert "damaged: offsets 1 to 1" in follower.warnings[-1] and "copies it from another replica" in follower.warnings[-1]
    cluster.pass_ms(3000)
    assert held(follower) == [b"0", b"1", b"2"] and follower.broker_id in state_of(cluster).isr


def test_damaged_follower_leaves_the_isr_before_it_truncates() -> None:
    cluster, leader = a_cluster()
    follower = others(cluster, leader)[0]
    replica = follower.node.partitions.followers[T0]
    cluster.store_delivers = False
    follower.node.replica_health.damaged(replica, 1)
    follower._perform(follower.node.context.effects)
    cluster.pass_ms(1000)
    assert replica.log.end_offset == 3 and replica.waits and follower.broker_id in state_of(cluster).isr
    cluster.store_delivers = True
    cluster.run()
    assert not replica.waits and replica.log.truncations == 1
    cluster.pass_ms(3000)
    assert follower.broker_id in state_of(cluster).isr and replica.log.end_offset == 3


def test_damage_that_a_scrub_found_is_known_after_a_power_failure() -> None:
    cluster, leader = a_cluster(replicas=1)
    damage(leader, 1)
    leader.node.scrubs.look_at(leader.node.partitions.leaders[T0], 0, whole=True)
    leader._perform(leader.node.context.effects)
    cluster.run()
    gone = cluster.kill(leader.broker_id)
    again = start(cluster, gone, *[disk.lose() for disk in gone.disks.values()])
    cluster.pass_ms(3000)
    assert [(one.first, one.end) for one in again.node.partitions.leaders[T0].log.damages] == [(1, 2)]


def truncated(cluster: Cluster, leader: Broker) -> Broker:
    """A follower with one of three records left, whose disk has not recorded the lower recovery point yet."""
    follower = others(cluster, leader)[0]
    follower.changing = False
    follower.node.replica_health.damaged(follower.node.partitions.followers[T0], 1)
    follower._perform(follower.node.context.effects)
    cluster.pass_ms(3000)
    return follower


def test_truncated_follower_copies_only_after_its_recovery_point_is_recorded() -> None:
    cluster, leader = a_cluster()
    follower = truncated(cluster, leader)
    assert held(follower) == [b"0"] and follower.node.partitions.followers[T0].paused
    (change,) = follower.changes
    assert change.changes.lowers and ("recovery-point-offset-checkpoint", b"0\n1\nt 0 1\n") in change.changes.checkpoints
    follower.changing = True
    follower.change_logs()
    cluster.pass_ms(3000)
    assert held(follower) == [b"0", b"1", b"2"] and follower.broker_id in state_of(cluster).isr


def test_truncated_follower_that_is_elected_leads_only_after_its_recovery_point_is_recorded() -> None:
    cluster, leader = a_cluster(unclean_leader_election_enable="true")
    follower = truncated(cluster, leader)
    for broker in list(cluster.brokers.values()):
        if broker is not follower:
            cluster.kill(broker.broker_id)
    cluster.pass_ms(20 * SECOND_MS)
    state = follower.node.context.image.state(T0)
    assert state is not None and state.leader == follower.broker_id and T0 not in follower.node.partitions.leaders
    follower.changing = True
    follower.change_logs()
    cluster.run()
    assert T0 in follower.node.partitions.leaders


def test_a_leader_that_a_follower_cannot_copy_from_looks_at_its_log_and_hands_over() -> None:
    cluster, leader = a_cluster()
    gone = cluster.kill(others(cluster, leader)[0].broker_id)
    damage(leader, 1)
    start(cluster, gone, empty(cluster))
    cluster.pass_ms(10 * SECOND_MS)
    state = state_of(cluster)
    assert state.leader not in (-1, leader.broker_id) and len(state.isr) == 3
    assert [held(broker) for broker in cluster.brokers.values()] == [[b"0", b"1", b"2"]] * 3


def test_damaged_leader_without_a_successor_keeps_leading_and_reports_it() -> None:
    cluster, leader = a_cluster(replicas=2)
    gone = cluster.kill(others(cluster, leader)[0].broker_id)
    damage(leader, 1)
    start(cluster, gone, empty(cluster))
    cluster.pass_ms(20 * SECOND_MS)
    assert state_of(cluster).leader == leader.broker_id and produce(leader, batch(b"more")).error_code == 0
    assert len([warning for warning in leader.warnings if "no other in-sync replica has these records" in warning]) == 1


def test_damage_that_compaction_meets_is_followed_up() -> None:
    cluster, leader = a_cluster(records=0, cleanup_policy="compact", internal_segment_bytes="200", min_cleanable_dirty_ratio="0")
    leader.cleaning = False
    for number in range(6):
        assert produce(leader, batch(b"%d" % number, key=b"k")).error_code == 0
    cluster.pass_ms(1000)
    damage(leader, 0)
    replica = leader.leader("t")
    leader.node.compaction._leave_alone(replica, "test")
    leader._perform(leader.node.context.effects)
    cluster.pass_ms(3000)
    assert state_of(cluster).leader != leader.broker_id and len(state_of(cluster).isr) == 3


def test_a_state_that_names_an_impaired_replica_is_not_obeyed() -> None:
    """The controller did not know of it yet; it elects another broker when it does."""
    cluster, leader = a_cluster()
    follower = others(cluster, leader)[0]
    replica = follower.node.partitions.followers[T0]
    cluster.store_delivers = False
    follower.node.replica_health.damaged(replica, 1)
    follower._perform(follower.node.context.effects)
    state = state_of(cluster)
    named = replace(state, leader=follower.broker_id, leader_epoch=LeaderEpoch(state.leader_epoch + 1))
    path = layout.partition_state("t", 0)
    cluster.store.session().submit((Op("set", path, layout.encode_partition_state(named)),), lambda result: None)
    while follower.session.deliver(1):
        assert T0 not in follower.node.partitions.leaders
    cluster.store_delivers = True
    cluster.pass_ms(3000)
    assert state_of(cluster).leader not in (-1, follower.broker_id) and len(state_of(cluster).isr) == 3


def test_a_damaged_replica_cuts_nothing_before_the_store_knows_of_it() -> None:
    """A leader may be adding it to the ISR because of its earlier offset."""
    cluster, leader = a_cluster()
    follower = others(cluster, leader)[0]
    replica = follower.node.partitions.followers[T0]
    cluster.store_delivers = False
    follower.node.replica_health.damaged(replica, 1)
    outside = replace(state_of(cluster), isr=(leader.broker_id,), isr_epochs=())
    follower.node.replica_health.state_changed(T0, outside)
    assert replica.log.end_offset == 3 and replica.waits


def test_an_isr_member_that_fetches_below_its_acknowledged_offset_leaves_the_isr_at_once() -> None:
    cluster, leader = a_cluster()
    follower = others(cluster, leader)[0]
    led, number = leader.leader("t"), follower.broker_id
    cluster.cut_off(number)
    led.fetched(number, offset=1, broker_epoch=follower.node.context.epoch or 0, now_ms=cluster.now_ms)
    leader.node.isr_changes.look(led)
    leader._perform(leader.node.context.effects)
    cluster.run()
    assert number not in state_of(cluster).isr
    cluster.cut.clear()
    cluster.pass_ms(12 * SECOND_MS)
    assert number in state_of(cluster).isr


# In the registration.


def test_a_replica_that_reported_damage_meanwhile_does_not_join_the_isr() -> None:
    """The controller may not know of it: its write is conditional on the registration in its image."""
    cluster, leader = a_cluster()
    follower = others(cluster, leader)[0]
    gone = cluster.kill(follower.broker_id)
    cluster.cut.add(frozenset((leader.broker_id, gone.broker_id)))
    now = start(cluster, gone)
    replica = now.node.partitions.followers[T0]
    assert isinstance(replica, Follower) and now.broker_id not in state_of(cluster).isr
    # The controller is deaf for a moment, while the replica turns out damaged and the leader asks to count it in.
    cluster.store_delivers = False
    cluster.cut.clear()
    now.node.replica_health.damaged(replica, 1)
    now._perform(now.node.context.effects)
    led = leader.leader("t")
    led.fetched(now.broker_id, offset=led.log.end_offset, broker_epoch=now.node.context.epoch or 0, now_ms=cluster.now_ms)
    leader.node.isr_changes.look(led)
    leader._perform(leader.node.context.effects)
    cluster.run()
    node = cluster.store.tree.nodes[layout.partition_state("t", 0)]
    assert now.broker_id not in layout.decode_partition_state(node.data).isr
    cluster.store_delivers = True
    cluster.pass_ms(3000)
    assert now.broker_id in state_of(cluster).isr and held(now) == [b"0", b"1", b"2"]


def test_registration_has_the_epoch_since_which_stops_were_clean() -> None:
    cluster, leader = a_cluster()
    number = leader.broker_id
    first = leader.node.context.epoch
    assert "clean_since_epoch" not in registration(cluster, number)
    for _ in range(2):
        start(cluster, stop(cluster, cluster[number]))
        assert registration(cluster, number)["clean_since_epoch"] == first
    second = cluster[number].node.context.epoch
    now = cluster.restart(number)
    assert "clean_since_epoch" not in registration(cluster, number), "killed"
    start(cluster, stop(cluster, now))
    assert int(str(registration(cluster, number)["clean_since_epoch"])) > (second or 0)


def test_under_write_caching_a_clean_stop_keeps_a_replica_eligible_and_a_crash_does_not() -> None:
    for clean in (True, False):
        cluster, leader = a_cluster(write_caching="true", min_insync_replicas="2")
        first, last = others(cluster, leader)
        cluster.kill(first.broker_id)
        gone = stop(cluster, last) if clean else cluster.kill(last.broker_id)
        assert state_of(cluster).elr == (last.broker_id,)
        cluster.kill(leader.broker_id)
        start(cluster, gone)
        assert state_of(cluster).leader == (last.broker_id if clean else -1)


def test_an_unfit_follower_is_no_reason_to_refuse_acks_all() -> None:
    cluster, leader = a_cluster(disks=2, min_insync_replicas="2")
    follower = others(cluster, leader)[0]
    follower.handle(events.DirectoryFailed(directory=follower.node.partitions.followers[T0].directory.root, reason="test"))
    cluster.run()
    assert produce(leader, batch(b"more")).error_code == errors.NONE
