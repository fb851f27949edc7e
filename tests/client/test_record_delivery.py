"""Record delivery alone: records returned, iterated, deserialized, intercepted, and put back."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterable
from typing import Any

import pytest

from ottla.base.ids import TopicPartition
from ottla.client.consumer.delivery import CHECK_IN_S, RecordDelivery
from ottla.client.consumer.record import ConsumerRecord, Deserializers, RecordDeserializationFailed
from ottla.client.interceptors import ConsumerInterceptors
from ottla.client.options import ConsumerOptions, from_keywords
from ottla.client.serializers import Avro, Protobuf, SerializationFailed

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def a_record(offset: int, tp: TopicPartition = A, value: Any = b"1") -> ConsumerRecord:
    return ConsumerRecord(tp.topic, tp.partition, offset, 1000, 0, b"k", value)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def a_delivery(
    records: Iterable[ConsumerRecord], *, value: Any = None, key: Any = None, interceptors: Iterable[Any] = (), clock: Clock | None = None,
    **settings: Any,
) -> RecordDelivery:  # fmt: skip
    options = from_keywords(ConsumerOptions, settings)
    made = RecordDelivery(options, Deserializers({}, key, value), ConsumerInterceptors(interceptors, {}), clock or Clock())
    made.pending.extend(records)
    return made


def offsets(records: Iterable[ConsumerRecord]) -> list[int]:
    return [record.offset for record in records]


SOME = [a_record(offset) for offset in range(5)]
HOW: dict[str, dict[str, Any]] = {
    "plain": {},
    "deserialized": {"value": "str"},
    "intercepted": {"interceptors": [type("Looks", (), {"on_consume": lambda self, records: records})()]},
}
ANYHOW = pytest.mark.parametrize("how", HOW.values(), ids=HOW)


@ANYHOW
def test_records_are_returned_in_order_up_to_the_limit(how: dict[str, Any]) -> None:
    delivery = a_delivery(SOME, **how)
    assert [offsets(delivery.give(2)), offsets(delivery.give(2)), offsets(delivery.give(2)), delivery.give(2)] == [[0, 1], [2, 3], [4], []]


@ANYHOW
def test_unprocessed_records_become_pending_again_and_processed_ones_do_not(how: dict[str, Any]) -> None:
    delivery = a_delivery(SOME, **how)
    delivery.give(2)
    delivery.done()
    delivery.give(2)
    delivery.not_done()
    assert delivery.first_offsets() == {A: 2}
    assert offsets(delivery.pending) == [2, 3, 4]


@ANYHOW
def test_in_iteration_a_record_is_processed_when_the_next_is_requested(how: dict[str, Any]) -> None:
    delivery = a_delivery(SOME, **how)
    one_by_one = delivery.each()
    assert offsets([next(one_by_one), next(one_by_one)]) == [0, 1]
    delivery.not_done()
    assert offsets(delivery.pending) == [1, 2, 3, 4]


@ANYHOW
def test_iteration_regularly_returns_to_check_the_group(how: dict[str, Any]) -> None:
    clock = Clock()
    delivery = a_delivery(SOME, clock=clock, **how)
    seen = []
    for record in delivery.each():
        seen.append(record.offset)
        clock.now_s += CHECK_IN_S * 0.6
    assert seen == [0, 1]
    assert offsets(delivery.each()) == [2, 3, 4]


def test_a_short_commit_interval_makes_iteration_check_as_often() -> None:
    clock = Clock()
    delivery = a_delivery(SOME, clock=clock, auto_commit_interval_ms=100, group_id="g")
    seen = []
    for record in delivery.each():
        seen.append(record.offset)
        clock.now_s += 0.1
    assert seen == [0]


def test_a_revoked_partition_is_dropped_alone() -> None:
    delivery = a_delivery([a_record(3), a_record(7, B), a_record(4)])
    assert delivery.first_offsets() == {A: 3, B: 7}
    delivery.drop(lambda tp: tp == A)
    assert delivery.first_offsets() == {B: 7}


# -- deserializers


@pytest.mark.parametrize("origin", ["key", "value"])
def test_a_deserialization_error_names_the_partition_offset_and_the_seek_past_it(origin: str) -> None:
    record = ConsumerRecord("a", 0, 9, 1000, 0, b"\xff", b"\xff", (("h", b"1"),))
    delivery = a_delivery([record], **{origin: "str"})  # type: ignore[arg-type]
    with pytest.raises(RecordDeserializationFailed, match=f"the {origin} of a-0 at offset 9: .*seek to offset 10 to pass it") as raised:
        delivery.give(1)
    error = raised.value
    assert (error.partition, error.offset, error.origin, error.record) == (A, 9, origin, record)
    assert isinstance(error.__cause__, SerializationFailed)


def test_records_before_an_undeserializable_one_are_returned_and_it_stays_first() -> None:
    delivery = a_delivery([a_record(0), a_record(1), a_record(2, value=b"x"), a_record(3)], value=lambda data: int(data))
    assert offsets(delivery.give(10)) == [0, 1]
    delivery.done()
    for _ in range(2):
        with pytest.raises(ValueError, match=r"a-0 at offset 2: invalid literal"):
            delivery.give(10)
    assert delivery.first_offsets() == {A: 2}


def test_in_iteration_the_deserialization_error_is_raised() -> None:
    delivery = a_delivery([a_record(0), a_record(1, value=b"x")], value=lambda data: int(data))
    one_by_one = delivery.each()
    assert next(one_by_one).value == 1
    with pytest.raises(RecordDeserializationFailed):
        next(one_by_one)
    # The previous record is processed: the next one was requested.
    delivery.not_done()
    assert delivery.first_offsets() == {A: 1}


def test_the_error_can_be_pickled() -> None:
    error = RecordDeserializationFailed(a_record(4), "value", ValueError("no"))
    copied = pickle.loads(pickle.dumps(error))
    assert (str(copied), copied.offset, copied.record) == (str(error), 4, a_record(4))


# -- interceptors


class Failing:
    """An interceptor that returns an invalid value and raises in every method."""

    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        records.clear()
        raise RuntimeError("in on_consume")

    def on_commit(self, offsets: dict[Any, Any]) -> None:
        offsets.clear()
        raise RuntimeError("in on_commit")

    def close(self) -> None:
        raise RuntimeError("in close")


class RecordingInterceptor:
    """An interceptor that drops every second record and records its calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.settings: Any = None

    def configure(self, settings: Any) -> None:
        self.settings = settings

    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        return [record for record in records if record.offset % 2]

    def on_commit(self, offsets: Any) -> None:
        self.calls.append(offsets)

    def close(self) -> None:
        self.calls.append("closed")


def test_interceptors_change_records_despite_one_that_fails() -> None:
    assert offsets(a_delivery(SOME, interceptors=[Failing(), RecordingInterceptor()]).give(10)) == [1, 3]
    assert offsets(a_delivery(SOME, interceptors=[RecordingInterceptor(), Failing()]).each()) == [1, 3]


def test_interceptors_see_deserialized_records() -> None:
    class Upper:
        def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
            return [ConsumerRecord(r.topic, r.partition, r.offset, r.timestamp, 0, r.key, r.value.upper()) for r in records]

    assert [record.value for record in a_delivery([a_record(0, value=b"ab")], value="str", interceptors=[Upper()]).give(1)] == ["AB"]


def test_an_invalid_result_of_an_interceptor_is_logged_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    wrong = type("Wrong", (), {"on_consume": lambda self, records: [1]})()
    silent = type("Silent", (), {"on_consume": lambda self, records: None})()
    assert a_delivery(SOME, interceptors=[wrong, silent]).give(10) == SOME
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_interceptors_see_commits_and_close_despite_one_that_fails() -> None:
    recording = RecordingInterceptor()
    interceptors = ConsumerInterceptors([Failing(), recording], {"group_id": "g"})
    interceptors.on_commit({A: 3})  # type: ignore[dict-item]
    interceptors.close()
    assert recording.calls == [{A: 3}, "closed"]
    assert recording.settings == {"group_id": "g"}


def test_an_invalid_interceptor_is_refused() -> None:
    with pytest.raises(TypeError, match="it has no method on_consume, on_commit or close"):
        ConsumerInterceptors([object()], {})


# -- fast path and general path


class Objects:
    """A deserializer object with access to topic and headers."""

    def deserialize(self, topic: str, headers: list[Any], data: bytes | None) -> Any:
        return topic, headers, data


READERS: dict[str, tuple[Any, Any]] = {
    "a name": ("json", {"a": 1}),
    "a type": (str, '{"a":1}'),
    "a function": (lambda data: data[:1], b"{"),
    "an object": (Objects(), ("a", [("h", b"1")], b'{"a":1}')),
}


@pytest.mark.parametrize(("given", "wanted"), READERS.values(), ids=READERS)
@pytest.mark.parametrize("origin", ["key", "value"])
def test_each_kind_of_deserializer_reads_keys_and_values(given: Any, wanted: Any, origin: str) -> None:
    data = b'{"a":1}'
    (record,) = a_delivery([ConsumerRecord("a", 0, 9, 1000, 0, data, data, (("h", b"1"),))], **{origin: given}).give(1)
    other = "value" if origin == "key" else "key"
    assert (getattr(record, origin), getattr(record, other)) == (wanted, data)
    assert (record.offset, record.timestamp, record.headers) == (9, 1000, (("h", b"1"),))


def test_tombstones_reach_deserializer_objects_but_not_functions_and_formats() -> None:
    record = ConsumerRecord("a", 0, 9, 1000, 0, None, None)
    assert [one.value for given in ("json", int, Objects()) for one in a_delivery([record], value=given).give(1)] == [
        None,
        None,
        ("a", [], None),
    ]


SCHEMA = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


def test_avro_and_protobuf_errors_name_the_record() -> None:
    pytest.importorskip("fastavro")
    duration = pytest.importorskip("google.protobuf.duration_pb2").Duration
    for given, good, bad, value in (
        (Avro(SCHEMA), b"\x06", b"", {"id": 3}),
        (Protobuf(duration), b"\x08\x03", b"\xff", duration(seconds=3)),
    ):
        delivery = a_delivery([a_record(0, value=good), a_record(1, value=bad)], value=given)
        assert [record.value for record in delivery.give(10)] == [value]
        with pytest.raises(RecordDeserializationFailed, match=r"the value of a-0 at offset 1: .* bytes of topic a cannot be read as"):
            delivery.give(10)
