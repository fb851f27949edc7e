"""The parts of a producer that may be the user's own, each alone: serializers, partitioners, interceptors; and where keyless records go."""

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
from ottla.client.transport.cluster import NOBODY, PartitionInfo, TopicInfo
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
def test_formats_write_and_read_what_kafkas_serializers_do(given: Any, value: Any, data: bytes) -> None:
    write, read = both(given)
    assert write(value) == data
    assert read(data) == value
    assert write(None) is None and read(None) is None


@pytest.mark.parametrize(
    ("given", "wrong"),
    [("str", 1), ("str", "\ud800"), ("int", "1"), ("int", 1 << 63), (Int(16), 40_000), ("float", "x"), ("bytes", "x"), ("uuid", "x")],
)
def test_a_value_of_the_wrong_kind_is_refused_with_topic_and_format(given: Any, wrong: Any) -> None:
    write, _ = both(given)
    with pytest.raises(SerializationFailed, match=r"for topic t cannot be written as"):
        write(wrong)


@pytest.mark.parametrize(("given", "wrong"), [("str", b"\xff"), ("int", b"1"), ("float", b""), ("json", b"{"), ("uuid", b"x")])
def test_bytes_of_another_format_are_refused_with_topic_and_format(given: Any, wrong: bytes) -> None:
    _, read = both(given)
    with pytest.raises(SerializationFailed, match=r"bytes of topic t cannot be read as"):
        read(wrong)


@pytest.mark.parametrize("given", [b"{}", {"a": [1, (b"x",)]}, {b"k": 1}, [bytearray(b"x")], {"a": memoryview(b"x")}])
def test_json_has_no_bytes_and_says_what_to_do_with_them(given: Any) -> None:
    with pytest.raises(SerializationFailed, match=r"JSON has no bytes: decode them first.*without a serializer"):
        Json().serialize("t", [], given)


def test_a_class_that_declares_bytes_has_them_as_base64_in_json() -> None:
    form = Json(type=Blob)
    assert form.decode(form.encode(Blob(b"\xff"))) == Blob(b"\xff")


def test_json_may_be_read_into_a_class_and_is_checked() -> None:
    class Order(msgspec.Struct):
        id: int

    write, read = both(Json(type=Order))
    assert read(write(Order(7))) == Order(7)
    with pytest.raises(SerializationFailed, match="id"):
        read(b'{"id": "seven"}')


SCHEMA = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"]}]}


def test_avro_writes_records_of_a_schema_bare_or_with_a_registrys_id() -> None:
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


def test_avro_shapes_what_it_reads_for_another_schema() -> None:
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
def test_a_format_whose_package_is_missing_says_how_to_get_it(make: Any, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("ottla.client.serializers.import_module", missing)
    with pytest.raises(ImportError, match=rf"needs {package}: pip install 'ottla\[schema\]'"):
        make()


class Signed:
    """A serializer of one's own, with all that Kafka's have."""

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


def test_a_serializer_of_ones_own_is_configured_sees_topic_and_headers_and_none() -> None:
    mine = Signed()
    write = as_serializer(mine, {"client_id": "me"}, is_key=True)
    headers: list[tuple[str, bytes | None]] = []
    assert write is not None
    assert write("t", headers, None) == b"tombstone"
    assert headers == [("signed", b"t")]
    assert mine.configured == ("me", True)


def test_a_function_serializes_what_is_not_none() -> None:
    write, read = as_serializer(str.encode, {}, is_key=False), as_deserializer(bytes.decode, {}, is_key=False)
    assert write is not None and read is not None
    assert (write("t", [], "a"), write("t", [], None)) == (b"a", None)
    assert (read("t", [], b"a"), read("t", [], None)) == ("a", None)


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ("jsn", ValueError, "value_serializer: no format is called 'jsn'; did you mean json"),
        (Json, TypeError, r"give an object, Json\(\)"),
        (7, TypeError, "has no method serialize"),
    ],
)
def test_what_is_no_serializer_is_refused_at_once(given: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        as_serializer(given, {}, is_key=False)


# -- partitioners


def a_topic(count: int, *, leaderless: tuple[int, ...] = (), leaders: dict[int, int] | None = None) -> TopicInfo:
    partitions = (PartitionInfo(number, NOBODY if number in leaderless else (leaders or {}).get(number, 1), 0) for number in range(count))
    return TopicInfo("t", bytes(16), tuple(partitions))


def test_a_key_decides_as_in_java() -> None:
    # Facts from Java's Utils.murmur2: "21" -> -973932308, "foobar" -> -790332482.
    assert partition_for_key(b"21", 100) == (-973932308 & 0x7FFFFFFF) % 100
    assert partition_for_key(b"foobar", 100) == (-790332482 & 0x7FFFFFFF) % 100


def test_round_robin_takes_turns_per_topic_among_partitions_with_a_leader() -> None:
    choice = as_choice("round_robin", {}, Random(1))
    assert choice is not None
    topic = a_topic(4, leaderless=(2,))
    assert [choice("t", b"same", None, topic) for _ in range(6)] == [0, 1, 3, 0, 1, 3]
    assert choice("other", None, None, a_topic(2, leaderless=(0, 1))) == 0


def test_random_reaches_every_partition_with_a_leader() -> None:
    choice = as_choice("random", {}, Random(1))
    assert choice is not None
    assert {choice("t", b"same", None, a_topic(4, leaderless=(2,))) for _ in range(100)} == {0, 1, 3}


def test_a_partitioner_of_ones_own_may_be_a_function_or_an_object() -> None:
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
def test_what_is_no_partitioner_is_refused_at_once(given: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        as_choice(given, {}, Random(1))


# -- records without a key


def went(accumulator: Accumulator, info: TopicInfo, count: int, *, now_ms: float = 0) -> list[int]:
    """The partitions to which so many records of about 100 bytes went."""
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
    found = went(accumulator, a_topic(4), 400)
    assert all(len(set(found[start : start + 10])) == 1 for start in range(0, 400, 10))
    assert set(found) == {0, 1, 2, 3}


def test_a_partition_with_batches_of_others_is_left_at_twice_the_size() -> None:
    accumulator = an_accumulator(partitioner_adaptive_partitioning_enable=False)
    info = a_topic(2)
    (first,) = set(went(accumulator, info, 9))
    # Keyed records make the batch full early; the next one is not full when the share is used up.
    accumulator.add("t", first, 1, b"k", b"x" * 91, ())
    found = went(accumulator, info, 40)
    assert found[:1] == [first] and set(found) == {0, 1}


def test_a_new_picture_of_the_topic_changes_the_choice_only_where_it_must() -> None:
    accumulator = an_accumulator()
    (first,) = set(went(accumulator, a_topic(3), 2))
    assert set(went(accumulator, a_topic(3), 2)) == {first}
    assert len(accumulator._incomplete) == 1
    assert first not in went(accumulator, a_topic(3, leaderless=(first,)), 2)
    assert set(went(accumulator, a_topic(1), 2)) == {0}


def test_partitions_that_fall_behind_get_fewer_records() -> None:
    rng = Random(1)
    counted = Counter(choose(a_topic(3), rng, waiting={0: 0, 1: 3, 2: 1}.__getitem__) for _ in range(8000))
    assert [round(counted[number] / 1000) for number in range(3)] == [4, 1, 3]


def test_partitions_that_wait_alike_get_alike() -> None:
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


def test_a_broker_is_slow_when_it_took_nothing_for_the_timeout_although_there_was_something() -> None:
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
    """An interceptor that raises wherever it can."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        record.value = "half done"
        raise RuntimeError("in on_send")

    def on_acknowledgement(self, metadata: Any, error: Any) -> None:
        raise RuntimeError("in on_acknowledgement")

    def close(self) -> None:
        raise RuntimeError("in close")


class Heard:
    """One that hears, and changes nothing."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def on_acknowledgement(self, metadata: Any, error: Any) -> None:
        self.heard.append((metadata, error))

    def close(self) -> None:
        self.heard.append("closed")


def test_an_interceptor_that_fails_keeps_nothing_from_the_next_and_leaves_its_place_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard()
    interceptors = Interceptors([Failing(), heard], {})
    metadata = RecordMetadata("t", 0, 1, 2)
    assert interceptors.on_send(ProducerRecord("t", b"v")).topic == "t"
    interceptors.on_acknowledgement(metadata, None)
    interceptors.close()
    assert heard.heard == [(metadata, None), "closed"]
    assert caplog.text.count("RuntimeError: in ") == 3


def test_interceptors_see_what_the_one_before_made_of_a_record() -> None:
    class Adds:
        def __init__(self, what: str) -> None:
            self.what = what

        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return msgspec.structs.replace(record, value=record.value + self.what)

    assert Interceptors([Adds("a"), Adds("b")], {}).on_send(ProducerRecord("t", "v")).value == "vab"


def test_an_interceptor_that_gives_back_nothing_leaves_the_record() -> None:
    class Looks:
        def on_send(self, record: ProducerRecord) -> None:
            pass

    record = ProducerRecord("t", "v")
    assert Interceptors([Looks()], {}).on_send(record) is record


def test_what_is_no_interceptor_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="no interceptor"):
        Interceptors([builtins.object()], {})
