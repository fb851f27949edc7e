"""Brokers with several listeners: registrations, and the addresses that clients of each listener get."""

from typing import Any

from access_rules import ALICE, AUTHORIZER, CLUSTER, ROOT, grant, rule
from cluster import Broker, Cluster

from ottla.base.acls import Operation
from ottla.base.ids import BrokerId
from ottla.base.listeners import Endpoint, SecurityProtocol
from ottla.base.origin import ANONYMOUS
from ottla.broker.registration.peers import PEER
from ottla.store import layout
from ottla.wire import errors
from ottla.wire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from ottla.wire.messages.describe_cluster import DescribeClusterRequest
from ottla.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.incremental_alter_configs import AlterableConfig, AlterConfigsResource, IncrementalAlterConfigsRequest
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

PLAIN = Endpoint("PLAINTEXT", "plain1", 9092)
#: Broker 1 has both listeners, broker 2 has no CLIENT.
LISTENERS = {
    1: (Endpoint("CLIENT", "client1", 9093, SecurityProtocol.SSL), PLAIN),
    2: (Endpoint("PLAINTEXT", "plain2", 9092),),
}


def two_brokers() -> Cluster:
    """With a topic that has a partition on each."""
    cluster = Cluster(2, listeners=LISTENERS)
    assignments = [CreatableReplicaAssignment(partition_index=number, broker_ids=[number + 1]) for number in (0, 1)]
    topic = CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=assignments)
    cluster[1].send(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7)
    cluster[1].flush()
    return cluster


def leaders(broker: Broker, listener: str, version: int) -> list[tuple[int, int]]:
    """Error code and leader of each partition in Metadata."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    (topic,) = broker.ask(request, version, listener=listener).topics
    return [(partition.error_code, partition.leader_id) for partition in topic.partitions]


def test_a_registration_has_all_listeners_in_kafkas_layout() -> None:
    cluster = Cluster(1, listeners=LISTENERS)
    written = layout.decode_broker(cluster.store.tree.nodes[layout.broker(BrokerId(1))].data)
    assert written.endpoints == ("CLIENT://client1:9093", "PLAINTEXT://plain1:9092")
    assert written.listener_security_protocol_map == {"CLIENT": "SSL", "PLAINTEXT": "PLAINTEXT"}
    assert (written.host, written.port) == ("plain1", 9092)


def test_a_registration_without_a_plaintext_listener_has_no_host_as_in_kafka() -> None:
    cluster = Cluster(1, listeners={1: LISTENERS[1][:1]})
    written = layout.decode_broker(cluster.store.tree.nodes[layout.broker(BrokerId(1))].data)
    assert (written.host, written.port) == (None, -1)
    found = cluster[1].node.context.image.brokers[BrokerId(1)]
    assert (found.host, found.port) == ("client1", 9093) and found.endpoint("PLAINTEXT") is None


def test_clients_get_the_addresses_of_their_own_listener_and_no_brokers_without_it() -> None:
    cluster = two_brokers()
    for broker in (cluster[1], cluster[2]):
        seen = {
            listener: [(one.node_id, one.host, one.port) for one in broker.ask(MetadataRequest(topics=[]), 12, listener=listener).brokers]
            for listener in ("PLAINTEXT", "CLIENT", "OTHER")
        }
        assert seen == {"PLAINTEXT": [(1, "plain1", 9092), (2, "plain2", 9092)], "CLIENT": [(1, "client1", 9093)], "OTHER": []}
        described = broker.ask(DescribeClusterRequest(), 1, listener="CLIENT").brokers
        assert [(one.broker_id, one.host, one.port) for one in described] == [(1, "client1", 9093)]


def test_a_leader_without_the_clients_listener_is_not_found() -> None:
    cluster = two_brokers()
    assert leaders(cluster[1], "PLAINTEXT", 12) == [(0, 1), (0, 2)]
    assert leaders(cluster[1], "CLIENT", 12) == [(0, 1), (errors.ListenerNotFound.code, -1)]
    assert leaders(cluster[1], "CLIENT", 5) == [(0, 1), (errors.LeaderNotAvailable.code, -1)]
    (topic,) = cluster[1].ask(DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t")]), 0, listener="CLIENT").topics
    assert [partition.leader_id for partition in topic.partitions] == [1, -1]


def test_a_coordinator_without_the_clients_listener_is_not_available() -> None:
    cluster = two_brokers()
    cluster[1].send(FindCoordinatorRequest(coordinator_keys=["g"]), 4)
    cluster[1].flush()
    found = {}
    for group in map(str, range(20)):
        (plain,) = cluster[1].ask(FindCoordinatorRequest(coordinator_keys=[group]), 4).coordinators
        (client,) = cluster[1].ask(FindCoordinatorRequest(coordinator_keys=[group]), 4, listener="CLIENT").coordinators
        found[plain.node_id, plain.host] = (client.error_code, client.host)
    assert found == {(1, "plain1"): (0, "client1"), (2, "plain2"): (errors.CoordinatorNotAvailable.code, "")}


def test_settings_of_a_listener_are_described_over_those_of_the_broker() -> None:
    cluster = Cluster(1, settings={"listener.name.client.max.connections": "7", "max.connections": "100"})
    resource = DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=["listener.name.client.max.connections"])
    (config,) = cluster[1].ask(DescribeConfigsRequest(resources=[resource], include_synonyms=True), 4).results[0].configs
    assert config.value == "7"
    assert [(one.name, one.value) for one in config.synonyms] == [
        ("listener.name.client.max.connections", "7"), ("max.connections", "100"), ("max.connections", "20000"),
    ]  # fmt: skip


def set_of_listener(broker: Broker, name: str, value: str, *, of: int = 1, principal: str = ANONYMOUS, client_id: str | None = None) -> Any:
    """Sends a change of a setting of broker ``of``."""
    config = AlterableConfig(name=f"listener.name.client.{name}", config_operation=0, value=value)
    resource = AlterConfigsResource(resource_type=4, resource_name=str(of), configs=[config])
    sent = broker.send(IncrementalAlterConfigsRequest(resources=[resource]), 1, principal=principal, client_id=client_id)
    assert sent.answer is not None, "it is answered"
    return sent.answer.responses[0]


def test_a_broker_checks_its_certificates_before_the_controller_stores_their_settings() -> None:
    cluster = Cluster(2, listeners=LISTENERS)
    other = next(broker for broker in (cluster[1], cluster[2]) if not broker.node.controller.active)
    number = other.broker_id
    other.certificates_problem = "listener CLIENT: ssl.keystore.location: cannot read /new: No such file"
    refused = set_of_listener(other, "ssl.keystore.location", "/new", of=number)
    assert (refused.error_code, refused.error_message) == (errors.InvalidRequest.code, other.certificates_problem)
    assert cluster.controller.node.context.image.overrides("brokers", str(number)) == {}
    other.certificates_problem = ""
    assert set_of_listener(other, "ssl.keystore.location", "/new", of=number).error_code == 0
    assert cluster.controller.node.context.image.overrides("brokers", str(number)) == {"listener.name.client.ssl.keystore.location": "/new"}
    (checked, _) = other.checked
    assert checked["client"].ssl_keystore_location == "/new"
    assert other.adopted == 1


def test_a_controller_does_not_check_certificates_of_another_broker_when_there_are_access_rules() -> None:
    """The request then travels in an Envelope, with the client id of the client."""
    cluster = Cluster(2, settings=AUTHORIZER, listeners=LISTENERS)
    other = next(broker for broker in (cluster[1], cluster[2]) if not broker.node.controller.active)
    number = other.broker_id
    changed = set_of_listener(other, "ssl.keystore.location", "/new", of=number, principal=ROOT)
    assert (changed.error_code, changed.error_message) == (0, None)
    assert cluster.controller.node.context.image.overrides("brokers", str(number)) == {"listener.name.client.ssl.keystore.location": "/new"}
    assert len(other.checked) == 1 and cluster.controller.checked == []


def test_a_broker_opens_no_files_for_a_client_that_may_not_change_its_settings() -> None:
    """The files can be any of the machine, and the problem says whether they exist."""
    for number in (1, 2):
        cluster = Cluster(2, settings=AUTHORIZER, listeners=LISTENERS)
        for broker in (cluster[1], cluster[2]):
            broker.certificates_problem = "listener CLIENT: ssl.keystore.location: cannot read /etc/shadow: Permission denied"
        refused = set_of_listener(cluster[number], "ssl.keystore.location", "/etc/shadow", of=number, principal=ALICE)
        assert refused.error_code == errors.ClusterAuthorizationFailed.code and "/etc/shadow" not in refused.error_message
        assert cluster[1].checked == cluster[2].checked == []


def test_a_client_with_the_client_id_of_brokers_does_not_avoid_the_check_of_certificates() -> None:
    cluster = Cluster(1, settings=AUTHORIZER, listeners=LISTENERS)
    grant(cluster, rule(Operation.ALTER_CONFIGS, CLUSTER))
    cluster[1].certificates_problem = "listener CLIENT: ssl.keystore.location: cannot read /new: No such file"
    refused = set_of_listener(cluster[1], "ssl.keystore.location", "/new", principal=ALICE, client_id=PEER)
    assert (refused.error_code, refused.error_message) == (errors.InvalidRequest.code, cluster[1].certificates_problem)


def test_certificates_are_checked_by_the_broker_that_has_their_files() -> None:
    cluster = Cluster(2, listeners=LISTENERS)
    refused = set_of_listener(cluster[1], "ssl.keystore.location", "/new", of=2)
    assert refused.error_code == errors.InvalidRequest.code and "send the request to it" in refused.error_message
    assert set_of_listener(cluster[1], "max.connections", "5", of=2).error_code == 0


def test_passwords_are_not_stored_in_zookeeper() -> None:
    cluster = Cluster(1, settings={"zookeeper.connect": "zookeeper:2181"}, listeners=LISTENERS)
    refused = set_of_listener(cluster[1], "ssl.keystore.password", "sentinel")
    assert refused.error_code == errors.InvalidRequest.code and "secrets are not stored there" in refused.error_message
    assert "sentinel" not in refused.error_message


def test_secret_settings_are_not_described() -> None:
    cluster = Cluster(1, settings={"ssl.key.password": "sentinel"}, listeners=LISTENERS)
    assert set_of_listener(cluster[1], "ssl.keystore.password", "sentinel").error_code == 0
    resource = DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
    (result,) = cluster[1].ask(DescribeConfigsRequest(resources=[resource], include_synonyms=True), 4).results
    found = {config.name: (config.value, config.is_sensitive) for config in result.configs}
    assert found["ssl.key.password"] == found["listener.name.client.ssl.keystore.password"] == (None, True)
    assert "sentinel" not in repr(result)
