"""Serializers, partitioners and interceptors alone, built in and of the user; and partitioning of records without a key."""

from __future__ import annotations

import builtins
import uuid
from collections import Counter
from random import Random
from typing import Any

import msgspec
import pytest

from ottla.client.interceptors import Interceptors, ProducerRecord
from ottla.client.options import ProducerOptions, from_keywords
from ottla.client.producer.accumulator import Accumulator
from ottla.client.producer.batches import RecordMetadata
from ottla.client.producer.partitioner import as_choice
from ottla.client.producer.sticky_partitioning import NodeLatency, choose, weighted
from ottla.client.serializers import Avro, Float, Int, Json, Protobuf, SerializationFailed, as_deserializer, as_serializer
from ottla.client.transport.cluster import NO_NODE, PartitionInfo, TopicInfo
from ottla.records import partition_for_key

# -- serializers


class Blob(msgspec.Struct):
    data: bytes


def both(given: Any) -> tuple[Any, Any]:
    write, read = as_serializer(given, {}, is_key=False), as_deserializer(given, {}, is_key=False)
    assert write is not None and read is not None
    return lambda data: write("t", [], data), lambda data: read("t", [], data)


ID = uuid.UUID("12345678-1234-5678-1234-567812345678")
FORMS = {
    "str": ("str", "Grüße", "Grüße".encode()),
    "type str": (str, "a", b"a"),
    "int": ("int", -2, b"\xff" * 7 + b"\xfe"),
    "type int": (int, 1, b"\0" * 7 + b"\1"),
    "32 bits": (Int(32), 258, b"\0\0\1\2"),
    "16 bits": (Int(16), -1, b"\xff\xff"),
    "float": ("float", 1.5, b"\x3f\xf8" + bytes(6)),
    "float of 32 bits": (Float(32), 1.5, b"\x3f\xc0\0\0"),
    "bytes": ("bytes", b"\0a", b"\0a"),
    "json": ("json", {"a": [1, None, "x"]}, b'{"a":[1,null,"x"]}'),
    "uuid": ("uuid", ID, b"12345678-1234-5678-1234-567812345678"),
}


@pytest.mark.parametrize(("given", "value", "data"), FORMS.values(), ids=FORMS)
def test_formats_are_compatible_with_kafkas_serializers(given: Any, value: Any, data: bytes) -> None:
    write, read = both(given)
    assert write(value) == data
    assert read(data) == value
    assert write(None) is None and read(None) is None


@pytest.mark.parametrize(
    ("given", "wrong"),
    [("str", 1), ("str", "\ud800"), ("int", "1"), ("int", 1 << 63), (Int(16), 40_000), ("float", "x"), ("bytes", "x"), ("uuid", "x")],
)
def test_a_value_of_the_wrong_type_is_refused_with_topic_and_format(given: Any, wrong: Any) -> None:
    write, _ = both(given)
    with pytest.raises(SerializationFailed, match=r"for topic t cannot be written as"):
        write(wrong)


@pytest.mark.parametrize(("given", "wrong"), [("str", b"\xff"), ("int", b"1"), ("float", b""), ("json", b"{"), ("uuid", b"x")])
def test_bytes_in_another_format_are_refused_with_topic_and_format(given: Any, wrong: bytes) -> None:
    _, read = both(given)
    with pytest.raises(SerializationFailed, match=r"bytes of topic t cannot be read as"):
        read(wrong)


@pytest.mark.parametrize("given", [b"{}", {"a": [1, (b"x",)]}, {b"k": 1}, [bytearray(b"x")], {"a": memoryview(b"x")}])
def test_json_refuses_bytes_with_advice(given: Any) -> None:
    with pytest.raises(SerializationFailed, match=r"JSON has no bytes: decode them first.*without a serializer"):
        Json().serialize("t", [], given)


def test_a_class_that_declares_bytes_gets_base64_in_json() -> None:
    form = Json(type=Blob)
    assert form.decode(form.encode(Blob(b"\xff"))) == Blob(b"\xff")


def test_json_can_be_read_into_a_class_with_checks() -> None:
    class Order(msgspec.Struct):
        id: int

    write, read = both(Json(type=Order))
    assert read(write(Order(7))) == Order(7)
    with pytest.raises(SerializationFailed, match="id"):
        read(b'{"id": "seven"}')


SCHEMA = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"]}]}


def test_avro_writes_records_bare_or_with_a_registry_id() -> None:
    pytest.importorskip("fastavro")
    order = {"id": 3, "note": "x"}
    write, read = both(Avro(SCHEMA))
    assert write(order) == b"\x06\x02\x02x"
    assert read(write(order)) == order
    write, read = both(Avro(msgspec.json.encode(SCHEMA).decode(), schema_id=258))
    assert write(order) == b"\0\0\0\1\2\x06\x02\x02x"
    assert read(write(order)) == order
    with pytest.raises(SerializationFailed, match="not by 0000000102, which is schema 258"):
        read(b"\0\0\0\1\3\x06\x02\x02x")
    with pytest.raises(SerializationFailed, match="written as Avro"):
        write({"id": "no number"})
    with pytest.raises(SerializationFailed, match="read as Avro"):
        read(b"\0\0\0\1\2")


def test_avro_resolves_to_a_reader_schema() -> None:
    pytest.importorskip("fastavro")
    newer = {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "paid", "type": "boolean", "default": False}]}
    write, _ = both(Avro(SCHEMA))
    _, read = both(Avro(SCHEMA, reader_schema=newer))
    assert read(write({"id": 1, "note": None})) == {"id": 1, "note": None, "paid": False}


def test_protobuf_writes_messages_of_one_class() -> None:
    duration = pytest.importorskip("google.protobuf.duration_pb2").Duration
    write, read = both(Protobuf(duration))
    assert write(duration(seconds=3)) == b"\x08\x03"
    assert read(b"\x08\x03").seconds == 3
    with pytest.raises(SerializationFailed, match="expected a Duration"):
        write("x")
    with pytest.raises(SerializationFailed, match="read as protobuf Duration"):
        read(b"\xff")


@pytest.mark.parametrize(("make", "package"), [(lambda: Avro(SCHEMA), "fastavro"), (lambda: Protobuf(Counter), "protobuf")])
def test_a_format_with_a_missing_package_says_how_to_install_it(make: Any, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("ottla.client.serializers.import_module", missing)
    with pytest.raises(ImportError, match=rf"needs {package}: pip install 'ottla\[schema\]'"):
        make()


class Signed:
    """A user's serializer with all of Kafka's methods."""

    def __init__(self) -> None:
        self.configured: Any = None
        self.closed = False

    def configure(self, settings: Any, is_key: bool) -> None:
        self.configured = (settings["client_id"], is_key)

    def serialize(self, topic: str, headers: list[tuple[str, bytes | None]], data: Any) -> bytes | None:
        headers.append(("signed", topic.encode()))
        return b"tombstone" if data is None else str(data).encode()

    def close(self) -> None:
        self.closed = True


def test_a_users_serializer_is_configured_and_receives_topic_headers_and_none() -> None:
    mine = Signed()
    write = as_serializer(mine, {"client_id": "me"}, is_key=True)
    headers: list[tuple[str, bytes | None]] = []
    assert write is not None
    assert write("t", headers, None) == b"tombstone"
    assert headers == [("signed", b"t")]
    assert mine.configured == ("me", True)


def test_a_function_serializes_values_other_than_none() -> None:
    write, read = as_serializer(str.encode, {}, is_key=False), as_deserializer(bytes.decode, {}, is_key=False)
    assert write is not None and read is not None
    assert (write("t", [], "a"), write("t", [], None)) == (b"a", None)
    assert (read("t", [], b"a"), read("t", [], None)) == ("a", None)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ("jsn", ValueError, "value_serializer: no format is called 'jsn'; did you mean json"),
        (Json, TypeError, r"give an object, Json\(\)"),
        (7, TypeError, "has no method serialize"),
    ],
)
def test_an_invalid_serializer_is_refused_at_once(given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        as_serializer(given, {}, is_key=False)


# -- partitioners


def a_topic(count: int, *, leaderless: tuple[int, ...] = (), leaders: dict[int, int] | None = None) -> TopicInfo:
    partitions = (PartitionInfo(number, NO_NODE if number in leaderless else (leaders or {}).get(number, 1), 0) for number in range(count))
    return TopicInfo("t", bytes(16), tuple(partitions))


def test_a_key_selects_the_same_partition_as_in_java() -> None:
    # Expected values of Java's Utils.murmur2: "21" -> -973932308, "foobar" -> -790332482.
    assert partition_for_key(b"21", 100) == (-973932308 & 0x7FFFFFFF) % 100
    assert partition_for_key(b"foobar", 100) == (-790332482 & 0x7FFFFFFF) % 100


def test_round_robin_alternates_per_topic_among_partitions_with_a_leader() -> None:
    choice = as_choice("round_robin", {}, Random(1))
    assert choice is not None
    topic = a_topic(4, leaderless=(2,))
    assert [choice("t", b"same", None, topic) for _ in range(6)] == [0, 1, 3, 0, 1, 3]
    assert choice("other", None, None, a_topic(2, leaderless=(0, 1))) == 0


def test_random_reaches_every_partition_with_a_leader() -> None:
    choice = as_choice("random", {}, Random(1))
    assert choice is not None
    assert {choice("t", b"same", None, a_topic(4, leaderless=(2,))) for _ in range(100)} == {0, 1, 3}


def test_a_users_partitioner_can_be_a_function_or_an_object() -> None:
    class Last:
        settings: Any = None

        def configure(self, settings: Any) -> None:
            self.settings = settings

        def partition(self, topic: str, key: Any, value: Any, info: TopicInfo) -> int:
            return len(info.partitions) - 1

    mine = Last()
    by_object = as_choice(mine, {"acks": "all"}, Random(1))
    by_function = as_choice(lambda topic, key, value, info: len(value), {}, Random(1))
    assert by_object is not None and by_function is not None
    assert by_object("t", None, None, a_topic(3)) == 2
    assert mine.settings == {"acks": "all"}
    assert by_function("t", None, b"x", a_topic(3)) == 1
    with pytest.raises(ValueError, match=r"chose 3 for topic t, which has partitions 0 to 2"):
        by_function("t", None, b"xxx", a_topic(3))


@pytest.mark.parametrize(("given", "error"), [("sticky", ValueError), (3, TypeError), (Counter, TypeError)])
def test_an_invalid_partitioner_is_refused_at_once(given: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        as_choice(given, {}, Random(1))


# -- records without a key


def chosen_partitions(accumulator: Accumulator, info: TopicInfo, count: int, *, now_ms: float = 0) -> list[int]:
    """The partitions chosen for `count` records of about 100 bytes."""
    found = []
    accumulator.update_metadata({"t": info})
    for _ in range(count):
        record = ("t", None, 1, None, b"x" * 91, ())
        added = accumulator.add(*record) or accumulator.begin(*record, now_ms, info)
        assert added is not None
        found.append(added[0].partition)
    return found


def an_accumulator(**settings: Any) -> Accumulator:
    made = Accumulator(from_keywords(ProducerOptions, {"batch_size": 1061, **settings}), Random(1))
    made.producer = (1, 0)
    return made


def test_records_without_a_key_fill_one_batch_after_the_other_and_reach_every_partition() -> None:
    accumulator = an_accumulator()
    found = chosen_partitions(accumulator, a_topic(4), 400)
    assert all(len(set(found[start : start + 10])) == 1 for start in range(0, 400, 10))
    assert set(found) == {0, 1, 2, 3}


def test_the_sticky_partition_with_foreign_batches_changes_at_twice_the_size() -> None:
    accumulator = an_accumulator(partitioner_adaptive_partitioning_enable=False)
    info = a_topic(2)
    (first,) = set(chosen_partitions(accumulator, info, 9))
    # Keyed records fill the batch early; the next one is not full when the partition's share is used up.
    accumulator.add("t", first, 1, b"k", b"x" * 91, ())
    found = chosen_partitions(accumulator, info, 40)
    assert found[:1] == [first] and set(found) == {0, 1}


def test_new_metadata_changes_the_partition_only_if_necessary() -> None:
    accumulator = an_accumulator()
    (first,) = set(chosen_partitions(accumulator, a_topic(3), 2))
    assert set(chosen_partitions(accumulator, a_topic(3), 2)) == {first}
    assert len(accumulator._incomplete) == 1
    assert first not in chosen_partitions(accumulator, a_topic(3, leaderless=(first,)), 2)
    assert set(chosen_partitions(accumulator, a_topic(1), 2)) == {0}


def test_partitions_with_longer_queues_get_fewer_records() -> None:
    rng = Random(1)
    counted = Counter(choose(a_topic(3), rng, waiting={0: 0, 1: 3, 2: 1}.__getitem__) for _ in range(8000))
    assert [round(counted[number] / 1000) for number in range(3)] == [4, 1, 3]


def test_partitions_with_equal_queues_get_equal_shares() -> None:
    rng = Random(1)
    counted = Counter(weighted([2, 2], rng) for _ in range(1000))
    assert 400 < counted[0] < 600


def test_partitions_without_a_leader_or_of_a_slow_broker_get_none() -> None:
    rng = Random(1)
    topic = a_topic(4, leaderless=(0,), leaders={1: 7, 2: 8, 3: 8})
    assert {choose(topic, rng, waiting=lambda _: 0, slow_nodes={7}) for _ in range(50)} == {2, 3}
    assert {choose(topic, rng, waiting=lambda _: 0, slow_nodes={7, 8}) for _ in range(50)} == {1, 2, 3}
    assert {choose(topic, rng) for _ in range(50)} == {1, 2, 3}
    assert {choose(a_topic(2, leaderless=(0, 1)), rng) for _ in range(50)} == {0, 1}


def test_a_broker_is_slow_if_it_accepted_nothing_for_the_timeout_with_batches_ready() -> None:
    latency = NodeLatency(100)
    latency.asked(1, 1000, took=True)
    latency.asked(1, 1100, took=False)
    assert latency.slow() == set()
    latency.asked(1, 1101, took=False)
    assert latency.slow() == {1}
    latency.asked(1, 1102, took=True)
    assert latency.slow() == set()


# -- interceptors


class Failing:
    """An interceptor that raises in every method."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        record.value = "half done"
        raise RuntimeError("in on_send")

    def on_acknowledgement(self, metadata: Any, error: Any) -> None:
        raise RuntimeError("in on_acknowledgement")

    def close(self) -> None:
        raise RuntimeError("in close")


class RecordingInterceptor:
    """An interceptor that records its calls and changes nothing."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def on_acknowledgement(self, metadata: Any, error: Any) -> None:
        self.calls.append((metadata, error))

    def close(self) -> None:
        self.calls.append("closed")


def test_a_failing_interceptor_is_logged_and_does_not_stop_the_next(caplog: pytest.LogCaptureFixture) -> None:
    calls = RecordingInterceptor()
    interceptors = Interceptors([Failing(), calls], {})
    metadata = RecordMetadata("t", 0, 1, 2)
    assert interceptors.on_send(ProducerRecord("t", b"v")).topic == "t"
    interceptors.on_acknowledgement(metadata, None)
    interceptors.close()
    assert calls.calls == [(metadata, None), "closed"]
    assert caplog.text.count("RuntimeError: in ") == 3


def test_interceptors_receive_the_record_of_the_previous_one() -> None:
    class Adds:
        def __init__(self, what: str) -> None:
            self.what = what

        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return msgspec.structs.replace(record, value=record.value + self.what)

    assert Interceptors([Adds("a"), Adds("b")], {}).on_send(ProducerRecord("t", "v")).value == "vab"


def test_an_interceptor_that_returns_none_leaves_the_record() -> None:
    class Looks:
        def on_send(self, record: ProducerRecord) -> None:
            pass

    record = ProducerRecord("t", "v")
    assert Interceptors([Looks()], {}).on_send(record) is record


def test_an_invalid_interceptor_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="no interceptor"):
        Interceptors([builtins.object()], {})
