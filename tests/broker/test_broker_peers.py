"""Requests that only brokers send are accepted from registered brokers; a tool that compares replicas reads from followers."""

import pytest
from cluster import Cluster, batch, fetch, fetch_request, produce, values

from ottla.broker.events import PeersResolved
from ottla.broker.registration.peers import PeerAddresses
from ottla.wire import errors
from ottla.wire.messages.alter_partition import AlterPartitionRequest
from ottla.wire.messages.fetch import ReplicaState


def resolved(setting: str, *addresses: str) -> PeerAddresses:
    peers = PeerAddresses(setting)
    peers.resolved(PeersResolved(addresses=addresses))
    return peers


@pytest.mark.parametrize(
    ("setting", "host", "accepted"),
    [
        ("", "10.0.0.1", True),
        ("", "10.0.0.2", False),
        ("", "127.0.0.9", True),
        ("", "::1", True),
        ("", "", True),
        ("", "10.0.0.99", True),
        ("10.0.0.2", "10.0.0.2", True),
        ("peers.example, 10.1.0.0/16", "10.1.2.3", True),
        ("10.1.0.0/16", "10.2.0.1", False),
        ("fd00::/8", "fd00::1%eth0", True),
        ("*", "203.0.113.7", True),
    ],
)
def test_senders_are_brokers_by_their_address(setting: str, host: str, accepted: bool) -> None:
    """A request to 10.0.0.99 from there is of the same machine."""
    assert resolved(setting, "10.0.0.1").accept(host, "10.0.0.99") is accepted


def test_every_address_is_accepted_before_the_first_resolution() -> None:
    assert PeerAddresses("").accept("203.0.113.7", "10.0.0.1")


def test_changes_of_an_isr_are_accepted_from_brokers_only() -> None:
    """Line 77; also by a broker that would forward the request under its own address."""
    cluster = Cluster(brokers=2)
    for broker in cluster.brokers.values():
        broker.handle(PeersResolved(addresses=("10.0.0.1",)))
        for _ in range(2):
            assert broker.ask(AlterPartitionRequest(broker_id=1), 3).error_code == errors.ClusterAuthorizationFailed.code
        [warning] = broker.warnings
        assert "refused from client" in warning and "ottla.peers.hosts" in warning


def test_fetch_as_a_replica_is_accepted_from_brokers_only() -> None:
    """Line 77."""
    cluster = Cluster(brokers=2)
    leader = cluster.topic(replicas=2)
    produce(leader, batch(b"a"))
    [follower] = [broker for broker in cluster.brokers.values() if broker is not leader]
    leader.handle(PeersResolved(addresses=("10.0.0.1",)))
    state = ReplicaState(replica_id=follower.broker_id, replica_epoch=follower.node.context.epoch or 0)
    topic_id = leader.leader("t").log.topic_id
    refused = leader.ask(fetch_request(topic=topic_id, replica_state=state), 15)
    assert refused.error_code == errors.ClusterAuthorizationFailed.code
    assert values(fetch(leader).records) == [b"a"], "a consumer may come from anywhere"
    leader.handle(PeersResolved(addresses=("client",)))
    assert leader.ask(fetch_request(topic=topic_id, replica_state=state), 15).error_code == 0


@pytest.mark.parametrize("version", [10, 12, 15])
def test_tool_that_compares_replicas_reads_from_followers(version: int) -> None:
    """Line 76; as kafka-replica-verification, up to the high watermark."""
    cluster = Cluster(brokers=2)
    leader = cluster.topic(replicas=2)
    produce(leader, batch(b"a"))
    cluster.pass_ms(1_000)
    [follower] = [broker for broker in cluster.brokers.values() if broker is not leader]
    cluster.flushing = False
    produce(leader, batch(b"not committed"), acks=1)
    topic = leader.leader("t").log.topic_id if version >= 13 else "t"
    sender = {"replica_state": ReplicaState(replica_id=-2)} if version >= 15 else {"replica_id": -2}
    for broker in (leader, follower):
        found = broker.ask(fetch_request(topic=topic, **sender), version).responses[0].partitions[0]
        assert (found.error_code, values(found.records)) == (0, [b"a"])
    ordinary = follower.ask(fetch_request(topic=topic), version).responses[0].partitions[0]
    assert ordinary.error_code == errors.NotLeaderOrFollower.code
