"""Paths and contents in the store are those of Kafka 3.x in ZooKeeper."""

import msgspec
import pytest

from ottla.base.ids import NO_TOPIC_ID, LeaderEpoch, ProducerId, TopicId, TopicPartition
from ottla.store import layout

TOPIC_ID = TopicId(bytes(range(16)))


def test_paths_are_kafkas_and_are_read_back() -> None:
    assert layout.partition_state("orders", 3) == "/brokers/topics/orders/partitions/3/state"
    assert layout.partition_state_of("/brokers/topics/orders/partitions/3/state") == TopicPartition("orders", 3)
    assert layout.topic_of("/brokers/topics/orders") == "orders"
    assert layout.topic_of("/brokers/topics/orders/partitions") is None
    assert layout.broker_of(layout.broker(7)) == 7
    assert layout.broker_of("/brokers/ids") is None
    assert layout.deleted_topic_of(layout.deleted_topic("x")) == "x"


@pytest.mark.parametrize(
    ("kind", "name", "path"),
    [
        ("topics", "a.b", "/config/topics/a.b"),
        ("brokers", "<default>", "/config/brokers/<default>"),
        ("users", "CN=a b/c*~", "/config/users/CN%3Da%20b%2Fc%2A%7E"),
    ],
)
def test_names_of_any_characters_become_one_path_element(kind: str, name: str, path: str) -> None:
    assert layout.config(kind, name) == path
    assert layout.config_of(path) == (kind, name)


def test_every_parent_of_the_layout_comes_before_its_children() -> None:
    for index, path in enumerate(layout.PERSISTENT_PATHS):
        parent = path.rpartition("/")[0]
        assert not parent or parent in layout.PERSISTENT_PATHS[:index]


def as_json(data: bytes) -> object:
    return msgspec.json.decode(data)


def test_a_topic_is_written_as_version_3() -> None:
    made = layout.TopicAssignment(topic_id=TOPIC_ID, replicas={0: (1, 2), 1: (2, 1)}, adding={0: (2,), 1: ()})
    data = layout.encode_topic(made)
    assert as_json(data) == {
        "version": 3, "topic_id": "AAECAwQFBgcICQoLDA0ODw", "partitions": {"0": [1, 2], "1": [2, 1]},
        "adding_replicas": {"0": [2]}, "removing_replicas": {},
    }  # fmt: skip
    assert layout.decode_topic(data) == layout.TopicAssignment(topic_id=TOPIC_ID, replicas=made.replicas, adding={0: (2,)})


def test_a_topic_of_version_1_has_no_id() -> None:
    old = layout.decode_topic(b'{"version":1,"partitions":{"0":[5]}}')
    assert (old.topic_id, old.replicas) == (NO_TOPIC_ID, {0: (5,)})


def test_partition_state_has_recovery_state_only_during_recovery() -> None:
    state = layout.PartitionState(leader=2, leader_epoch=LeaderEpoch(9), isr=(2, 3), controller_epoch=4)
    data = layout.encode_partition_state(state)
    assert as_json(data) == {"version": 1, "leader": 2, "leader_epoch": 9, "controller_epoch": 4, "isr": [2, 3]}
    assert layout.decode_partition_state(data) == state
    unclean = layout.PartitionState(leader=2, leader_epoch=LeaderEpoch(9), isr=(2,), controller_epoch=4, recovering=True)
    assert layout.decode_partition_state(layout.encode_partition_state(unclean)) == unclean


def test_a_partition_state_has_eligible_replicas_and_last_leader_in_keys_that_kafka_ignores() -> None:
    state = layout.PartitionState(
        leader=-1,
        leader_epoch=LeaderEpoch(9),
        isr=(2,),
        isr_epochs=(17,),
        controller_epoch=4,
        elr=(3, 1),
        elr_epochs=(5, 6),
        last_known_elr=(4,),
        last_leader=2,
    )
    data = layout.encode_partition_state(state)
    assert as_json(data) == {
        "version": 1, "leader": -1, "leader_epoch": 9, "controller_epoch": 4, "isr": [2], "isr_broker_epochs": [17],
        "eligible_leader_replicas": [3, 1], "elr_broker_epochs": [5, 6], "last_known_elr": [4], "last_known_leader": 2,
    }  # fmt: skip
    assert layout.decode_partition_state(data) == state
    assert [state.eligible_since(broker) for broker in (3, 1, 2)] == [5, 6, -1]
    assert [state.names(broker) for broker in (1, 2, 3, 4)] == [True, True, True, False]


def test_a_registration_names_replicas_that_are_not_fit_only_where_there_are_any() -> None:
    made = layout.BrokerRegistration(
        host="h",
        port=1,
        endpoints=("PLAINTEXT://h:1",),
        timestamp_ms=0,
        offline={"a": (0, 2)},
        impaired={"b": (1,)},
        full={"c": (4,)},
        clean_since=7,
    )
    content = as_json(layout.encode_broker(made))
    assert (content["offline_replicas"], content["impaired_replicas"], content["clean_since_epoch"]) == ({"a": [0, 2]}, {"b": [1]}, 7)  # type: ignore[index]
    assert content["full_replicas"] == {"c": [4]}  # type: ignore[index]
    assert layout.decode_broker(layout.encode_broker(made)) == made


def test_a_broker_is_registered_as_version_5() -> None:
    made = layout.BrokerRegistration(host="h", port=9092, endpoints=("PLAINTEXT://h:9092",), timestamp_ms=17, rack="r1")
    data = layout.encode_broker(made)
    assert as_json(data) == {
        "version": 5, "host": "h", "port": 9092, "jmx_port": -1, "timestamp": "17", "endpoints": ["PLAINTEXT://h:9092"],
        "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"}, "features": {}, "rack": "r1",
        "implementation": "ottla",
    }  # fmt: skip
    assert layout.decode_broker(data) == made


def test_a_broker_of_version_1_has_one_plaintext_endpoint() -> None:
    old = layout.decode_broker(b'{"version":1,"host":"h","port":9092,"jmx_port":9999,"timestamp":"2233345666"}')
    assert old.endpoints == ("PLAINTEXT://h:9092",)


def test_a_registration_of_ottla_without_a_mark_is_told_from_one_of_apache_kafka() -> None:
    of_0_1 = b'{"version":5,"host":"h","port":9092,"jmx_port":-1,"timestamp":"17","endpoints":["PLAINTEXT://h:9092"],"features":{}}'
    of_kafka = b'{"features":{},"endpoints":["PLAINTEXT://h:9092"],"jmx_port":-1,"port":9092,"host":"h","version":5,"timestamp":"17"}'
    assert [layout.decode_broker(data).implementation for data in (of_0_1, of_kafka)] == [layout.OTTLA, ""]


def test_the_smaller_nodes_are_kafkas() -> None:
    assert as_json(layout.encode_controller(3, 17)) == {"version": 2, "brokerid": 3, "timestamp": "17", "kraftControllerEpoch": -1}
    assert layout.decode_controller(b'{"version":1,"brokerid":3,"timestamp":"17"}') == 3
    assert layout.decode_controller_epoch(layout.encode_controller_epoch(41)) == 41
    assert as_json(layout.encode_config({"retention.ms": "1"})) == {"version": 1, "config": {"retention.ms": "1"}}
    assert layout.decode_config(layout.encode_config({"a": "b"})) == {"a": "b"}
    assert layout.decode_config(b"") == {}
    assert as_json(layout.encode_cluster_id("c")) == {"version": "1", "id": "c"}
    assert layout.decode_cluster_id(layout.encode_cluster_id("c")) == "c"
    block = layout.ProducerIdBlock(1, ProducerId(0), ProducerId(999))
    assert as_json(layout.encode_producer_id_block(block)) == {"version": 1, "broker": 1, "block_start": "0", "block_end": "999"}
    assert layout.decode_producer_id_block(layout.encode_producer_id_block(block)) == block
    wanted = b'{"version":1,"partitions":[{"topic":"a","partition":1},{"topic":"b","partition":0}]}'
    assert layout.decode_preferred_election(wanted) == [TopicPartition("a", 1), TopicPartition("b", 0)]
    wished = {TopicPartition("a", 1): (3, 1)}
    data = layout.encode_reassignment(wished)
    assert as_json(data) == {"version": 1, "partitions": [{"topic": "a", "partition": 1, "replicas": [3, 1]}]}
    assert layout.decode_reassignment(data) == wished
    assert as_json(layout.encode_log_dir_event(2)) == {"version": 1, "broker": 2, "event": 1}
    features = layout.Features(levels={"metadata.version": 7})
    assert as_json(layout.encode_feature(features)) == {
        "version": 2,
        "status": 1,
        "features": {"metadata.version": {"max_version_level": 7}},
    }
    assert layout.decode_feature(layout.encode_feature(features)) == features


@pytest.mark.parametrize(
    "decode",
    [
        layout.decode_topic, layout.decode_partition_state, layout.decode_broker, layout.decode_controller, layout.decode_controller_epoch,
        layout.decode_config, layout.decode_cluster_id, layout.decode_producer_id_block,
        layout.decode_feature, layout.decode_reassignment, layout.decode_preferred_election,
    ],
)  # fmt: skip
@pytest.mark.parametrize("data", [b"{", b"[]", b"\xff", b'{"version":9,"topic_id":"short","partitions":1,"config":1}'])
def test_other_content_is_refused_with_its_path(decode: object, data: bytes) -> None:
    with pytest.raises(layout.MalformedNode, match="store node /"):
        decode(data)  # type: ignore[operator]
