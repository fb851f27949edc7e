"""A broker whose store session is suspended, is lost, and is created again."""

import pytest
from cluster import Broker, Cluster, batch, fetch, produce, produce_request, values

from ottla.base.ids import TopicPartition
from ottla.base.ports import Op
from ottla.broker.controller import election_queue
from ottla.broker.registration.peers import PEER
from ottla.broker.replica import partitions
from ottla.sim.disk import SimDisk
from ottla.store import layout
from ottla.wire import errors
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest

T0 = TopicPartition("t", 0)
ZOOKEEPER = {"zookeeper.connect": "zk:2181", "zookeeper.session.timeout.ms": "6000"}


def suspended(broker: Broker) -> Broker:
    broker.session.suspend()
    broker.cluster.run()
    return broker


def resumed(broker: Broker) -> Broker:
    broker.session.resume()
    broker.cluster.run()
    return broker


def test_a_suspended_broker_accepts_and_acknowledges_nothing() -> None:
    cluster = Cluster()
    broker = cluster.topic()
    cluster.flushing = False
    waiting = broker.send(produce_request(batch(b"a")), 12)
    suspended(broker)
    assert waiting.answer.responses[0].partition_responses[0].error_code == errors.NotLeaderOrFollower.code
    broker.flush()
    assert produce(broker, batch(b"b")).error_code == errors.NotLeaderOrFollower.code
    assert fetch(broker).error_code == errors.NotLeaderOrFollower.code


def test_after_a_suspension_the_broker_leads_again_with_all_acknowledged_records() -> None:
    cluster = Cluster(brokers=3)
    broker = cluster.topic()
    assert produce(broker, batch(b"a")).error_code == 0
    registration = broker.node.context.epoch
    resumed(suspended(broker))
    assert broker.node.context.epoch == registration
    assert broker.leader("t").epoch == 0, "nothing changed, whichever broker was controller meanwhile"
    assert produce(broker, batch(b"b")).error_code == 0
    assert values(fetch(broker).records) == [b"a", b"b"]


def test_a_lost_session_is_followed_by_a_new_registration_and_a_larger_leader_epoch() -> None:
    cluster = Cluster(brokers=3)
    broker = cluster.topic()
    assert produce(broker, batch(b"a")).error_code == 0
    epoch, registration = broker.leader("t").epoch, broker.node.context.epoch
    assert registration is not None
    suspended(broker).session.expire_suspended()
    cluster.run()
    assert broker.broker_id not in cluster.controller.node.context.image.brokers
    resumed(broker)
    assert broker.node.context.epoch is not None and broker.node.context.epoch > registration
    assert broker.leader("t").epoch > epoch
    assert values(fetch(broker).records) == [b"a"]
    assert broker.halted is None


def test_after_a_lost_session_a_broker_does_not_lead_under_the_old_epoch() -> None:
    """Its loss was not noticed, so the store still names it; another broker may be about to be elected."""
    cluster = Cluster(brokers=2)
    broker = cluster.topic()
    other = next(one for one in cluster.brokers.values() if one is not broker)
    suspended(broker).session.expire_suspended()
    suspended(other)
    resumed(broker)
    assert broker.node.controller.active
    assert broker.leader("t").epoch > 0
    resumed(other)
    assert broker.leader("t").epoch > 0


def test_suspended_controller_writes_nothing_and_is_elected_again_when_reconnected() -> None:
    cluster = Cluster(brokers=2)
    first = cluster.controller
    epoch = first.node.context.image.controller_epoch
    suspended(first)
    assert not first.node.controller.active
    create = CreateTopicsRequest(topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)], timeout_ms=1000)
    assert first.ask(create, 7).topics[0].error_code == errors.NotController.code
    resumed(first)
    assert first.node.controller.active and first.node.context.image.controller_epoch == epoch + 1
    assert first.ask(create, 7).topics[0].error_code == 0


def test_another_controller_is_elected_when_the_session_of_the_controller_is_lost() -> None:
    cluster = Cluster(brokers=2)
    first = cluster.controller
    suspended(first).session.expire_suspended()
    cluster.run()
    assert cluster.controller is not first
    second = cluster.controller
    resumed(first)
    assert cluster.controller is second and not first.node.controller.active
    assert first.node.context.image.controller == second.broker_id


def test_controller_election_won_without_a_response_is_repeated() -> None:
    cluster = Cluster(brokers=2)
    first = cluster.controller
    other = next(one for one in cluster.brokers.values() if one is not first)
    other.session.fail_next(applied=True)
    cluster.kill(first.broker_id)
    assert other.node.context.image.controller == other.broker_id and not other.node.controller.active
    cluster.pass_ms(2000)
    assert other.node.controller.active


def test_a_registration_that_the_store_did_not_answer_is_made_again() -> None:
    for applied in (True, False):
        cluster = Cluster(settings=ZOOKEEPER)
        broker = cluster.topic()
        suspended(broker).session.expire_suspended()
        broker.session.fail_next(applied=applied)
        resumed(broker)
        cluster.pass_ms(2000)
        assert broker.node.ready and broker.halted is None
        assert produce(broker, batch(b"a")).error_code == 0


def test_a_former_life_at_the_same_address_is_replaced_at_once() -> None:
    cluster = Cluster(settings=ZOOKEEPER)
    gone = cluster.brokers.pop(1)
    gone.halted = "killed, and its session lives on"
    back = cluster.start(1, ZOOKEEPER, [SimDisk("new")])
    assert back.node.ready and back.node.controller.active
    assert back.node.context.epoch is not None and back.node.context.epoch > (gone.node.context.epoch or 0)


def registered_elsewhere(cluster: Cluster) -> None:
    description = layout.BrokerRegistration(host="elsewhere", port=1, endpoints=("PLAINTEXT://elsewhere:1",), timestamp_ms=0)
    cluster.store.session().submit(
        (Op("create", "/brokers/ids/1", layout.encode_broker(description), ephemeral=True),), lambda result: None
    )


def test_another_broker_of_the_same_number_is_waited_for_as_long_as_a_session_lives_and_then_refused() -> None:
    cluster = Cluster(0)
    registered_elsewhere(cluster)
    twin = cluster.start(1, ZOOKEEPER, [SimDisk("twin")])
    cluster.pass_ms(8_000)
    assert twin.halted is None
    cluster.pass_ms(3_000)
    assert twin.halted is not None and "broker id 1 is already registered in this cluster, at elsewhere:1" in twin.halted


def test_a_former_life_at_another_address_is_succeeded_when_its_session_ends() -> None:
    cluster = Cluster(0)
    registered_elsewhere(cluster)
    broker = cluster.start(1, ZOOKEEPER, [SimDisk("disk")])
    cluster.pass_ms(3_000)
    cluster.store.sessions[0].expire()
    cluster.run()
    assert broker.node.ready and broker.halted is None


def test_a_broker_whose_number_another_one_took_over_stops() -> None:
    cluster = Cluster(settings=ZOOKEEPER)
    broker = cluster[1]
    description = layout.BrokerRegistration(host="host1", port=9092, endpoints=("PLAINTEXT://host1:9092",), timestamp_ms=0)
    taken = Op("create", "/brokers/ids/1", layout.encode_broker(description), ephemeral=True)
    cluster.store.session().submit((Op("delete", "/brokers/ids/1"), taken), lambda result: None)
    cluster.run()
    assert broker.halted is not None and "already registered in this cluster, at host1:9092" in broker.halted


def test_a_deleted_registration_is_created_again() -> None:
    cluster = Cluster()
    broker = cluster.topic()
    cluster.store.session().submit((Op("delete", "/brokers/ids/1"),), lambda result: None)
    cluster.run()
    assert broker.node.ready and broker.leader("t").epoch > 0


def test_a_controller_request_from_another_broker_is_not_forwarded_again() -> None:
    cluster = Cluster(brokers=2)
    other = next(one for one in cluster.brokers.values() if one is not cluster.controller)
    create = CreateTopicsRequest(topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)], timeout_ms=1000)
    assert other.send(create, 7, client_id=PEER).answer.topics[0].error_code == errors.NotController.code
    assert other.send(create, 7).answer.topics[0].error_code == 0


def test_thousands_of_partitions_are_led_again_in_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "RESUMED_AT_ONCE", 3)
    cluster = Cluster()
    broker = cluster.topic(partitions=10)
    broker.session.suspend()
    cluster.run()
    assert not broker.node.partitions.leaders
    broker.session.resume()
    cluster.run()
    assert len(broker.node.partitions.leaders) == 3 and not broker.node.ready
    cluster.pass_ms(100)
    assert len(broker.node.partitions.leaders) == 10 and broker.node.ready


def test_elections_above_the_size_of_one_multi_are_written_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(election_queue, "PORTION", 2)
    cluster = Cluster(brokers=2)
    cluster.topic(partitions=7)
    (gone,) = [number for number, broker in cluster.brokers.items() if broker is not cluster.controller]
    led = [number for number, state in cluster.controller.node.context.image.topics["t"].states.items() if state.leader == gone]
    before = cluster.store.tree.zxid
    cluster.kill(gone)
    states = cluster.controller.node.context.image.topics["t"].states
    assert [states[number].leader for number in led] == [-1] * len(led)
    assert cluster.store.tree.zxid - before == 1 + (len(led) + 1) // 2


#: As a broker of Kafka 3.9 writes it.
KAFKAS = (
    b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"endpoints":["PLAINTEXT://k:9092"],"jmx_port":-1,'
    b'"port":9092,"host":"k","version":5,"timestamp":"1700000000000"}'
)


def test_broker_does_not_start_where_brokers_of_apache_kafka_are_registered() -> None:
    cluster = Cluster(0)
    kafka = cluster.store.session()
    kafka.submit((Op("create", "/brokers/ids/7", KAFKAS, ephemeral=True),), lambda result: None)
    broker = cluster.start(1, ZOOKEEPER, [SimDisk("disk")])
    assert broker.halted is not None and "brokers of Apache Kafka are registered" in broker.halted and "7 at k:9092" in broker.halted
    assert "/brokers/ids/1" not in cluster.store.tree.nodes
    kafka.expire()
    cluster.brokers.clear()
    assert cluster.start(1, ZOOKEEPER, [SimDisk("disk")]).node.ready, "nodes that they left do not matter"


def test_running_broker_warns_once_of_a_broker_of_apache_kafka() -> None:
    cluster = Cluster(settings=ZOOKEEPER)
    kafka = cluster.store.session()
    for operation in (Op("create", "/brokers/ids/7", KAFKAS, ephemeral=True), Op("set", "/brokers/ids/7", KAFKAS)):
        kafka.submit((operation,), lambda result: None)
        cluster.run()
    [warning] = [warning for warning in cluster[1].warnings if "Apache Kafka" in warning]
    assert "broker 7 at k:9092" in warning and "stop it" in warning
