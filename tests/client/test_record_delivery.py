"""Records on their way to the user, alone: given, iterated, deserialized, intercepted, and taken back."""

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
def test_records_are_given_up_to_the_limit_in_order(how: dict[str, Any]) -> None:
    delivery = a_delivery(SOME, **how)
    assert [offsets(delivery.give(2)), offsets(delivery.give(2)), offsets(delivery.give(2)), delivery.give(2)] == [[0, 1], [2, 3], [4], []]


@ANYHOW
def test_what_was_not_done_is_pending_again_and_what_was_done_is_not(how: dict[str, Any]) -> None:
    delivery = a_delivery(SOME, **how)
    delivery.give(2)
    delivery.done()
    delivery.give(2)
    delivery.not_done()
    assert delivery.first_offsets() == {A: 2}
    assert offsets(delivery.pending) == [2, 3, 4]


@ANYHOW
def test_one_by_one_each_record_is_done_with_when_the_next_is_asked_for(how: dict[str, Any]) -> None:
    delivery = a_delivery(SOME, **how)
    one_by_one = delivery.each()
    assert offsets([next(one_by_one), next(one_by_one)]) == [0, 1]
    delivery.not_done()
    assert offsets(delivery.pending) == [1, 2, 3, 4]


@ANYHOW
def test_who_iterates_comes_back_to_see_to_the_group(how: dict[str, Any]) -> None:
    clock = Clock()
    delivery = a_delivery(SOME, clock=clock, **how)
    seen = []
    for record in delivery.each():
        seen.append(record.offset)
        clock.now_s += CHECK_IN_S * 0.6
    assert seen == [0, 1]
    assert offsets(delivery.each()) == [2, 3, 4]


def test_who_commits_often_sees_to_it_as_often() -> None:
    clock = Clock()
    delivery = a_delivery(SOME, clock=clock, auto_commit_interval_ms=100, group_id="g")
    seen = []
    for record in delivery.each():
        seen.append(record.offset)
        clock.now_s += 0.1
    assert seen == [0]


def test_a_partition_that_is_read_elsewhere_is_dropped_alone() -> None:
    delivery = a_delivery([a_record(3), a_record(7, B), a_record(4)])
    assert delivery.first_offsets() == {A: 3, B: 7}
    delivery.drop(lambda tp: tp == A)
    assert delivery.first_offsets() == {B: 7}


# -- deserializers


@pytest.mark.parametrize("origin", ["key", "value"])
def test_what_cannot_be_deserialized_names_its_place_and_the_way_past_it(origin: str) -> None:
    record = ConsumerRecord("a", 0, 9, 1000, 0, b"\xff", b"\xff", (("h", b"1"),))
    delivery = a_delivery([record], **{origin: "str"})  # type: ignore[arg-type]
    with pytest.raises(RecordDeserializationFailed, match=f"the {origin} of a-0 at offset 9: .*seek to offset 10 to pass it") as raised:
        delivery.give(1)
    error = raised.value
    assert (error.partition, error.offset, error.origin, error.record) == (A, 9, origin, record)
    assert isinstance(error.__cause__, SerializationFailed)


def test_records_before_one_that_cannot_be_deserialized_are_given_and_it_stays_first() -> None:
    delivery = a_delivery([a_record(0), a_record(1), a_record(2, value=b"x"), a_record(3)], value=lambda data: int(data))
    assert offsets(delivery.give(10)) == [0, 1]
    delivery.done()
    for _ in range(2):
        with pytest.raises(ValueError, match=r"a-0 at offset 2: invalid literal"):
            delivery.give(10)
    assert delivery.first_offsets() == {A: 2}


def test_one_by_one_it_comes_out_of_the_loop() -> None:
    delivery = a_delivery([a_record(0), a_record(1, value=b"x")], value=lambda data: int(data))
    one_by_one = delivery.each()
    assert next(one_by_one).value == 1
    with pytest.raises(RecordDeserializationFailed):
        next(one_by_one)
    # The one before it is done: somebody asked for the next.
    delivery.not_done()
    assert delivery.first_offsets() == {A: 1}


def test_the_error_travels_between_processes() -> None:
    error = RecordDeserializationFailed(a_record(4), "value", ValueError("no"))
    copied = pickle.loads(pickle.dumps(error))
    assert (str(copied), copied.offset, copied.record) == (str(error), 4, a_record(4))


# -- interceptors


class Failing:
    """One that spoils what it is given and raises wherever it can."""

    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        records.clear()
        raise RuntimeError("in on_consume")

    def on_commit(self, offsets: dict[Any, Any]) -> None:
        offsets.clear()
        raise RuntimeError("in on_commit")

    def close(self) -> None:
        raise RuntimeError("in close")


class Heard:
    """One that leaves out every other record, and remembers."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.settings: Any = None

    def configure(self, settings: Any) -> None:
        self.settings = settings

    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        return [record for record in records if record.offset % 2]

    def on_commit(self, offsets: Any) -> None:
        self.told.append(offsets)

    def close(self) -> None:
        self.told.append("closed")


def test_interceptors_change_what_is_given_even_beside_one_that_fails() -> None:
    assert offsets(a_delivery(SOME, interceptors=[Failing(), Heard()]).give(10)) == [1, 3]
    assert offsets(a_delivery(SOME, interceptors=[Heard(), Failing()]).each()) == [1, 3]


def test_interceptors_see_deserialized_records() -> None:
    class Upper:
        def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
            return [ConsumerRecord(r.topic, r.partition, r.offset, r.timestamp, 0, r.key, r.value.upper()) for r in records]

    assert [record.value for record in a_delivery([a_record(0, value=b"ab")], value="str", interceptors=[Upper()]).give(1)] == ["AB"]


def test_what_is_no_list_of_records_is_told_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    wrong = type("Wrong", (), {"on_consume": lambda self, records: [1]})()
    silent = type("Silent", (), {"on_consume": lambda self, records: None})()
    assert a_delivery(SOME, interceptors=[wrong, silent]).give(10) == SOME
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_interceptors_hear_of_commits_and_of_the_end_even_beside_one_that_fails() -> None:
    heard = Heard()
    interceptors = ConsumerInterceptors([Failing(), heard], {"group_id": "g"})
    interceptors.on_commit({A: 3})  # type: ignore[dict-item]
    interceptors.close()
    assert heard.told == [{A: 3}, "closed"]
    assert heard.settings == {"group_id": "g"}


def test_what_is_no_interceptor_is_refused() -> None:
    with pytest.raises(TypeError, match="it has no method on_consume, on_commit or close"):
        ConsumerInterceptors([object()], {})


# -- by the short way and by the long one


class Objects:
    """One that wants to know where bytes come from."""

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
def test_each_form_of_deserializer_reads_keys_and_values(given: Any, wanted: Any, origin: str) -> None:
    data = b'{"a":1}'
    (record,) = a_delivery([ConsumerRecord("a", 0, 9, 1000, 0, data, data, (("h", b"1"),))], **{origin: given}).give(1)
    other = "value" if origin == "key" else "key"
    assert (getattr(record, origin), getattr(record, other)) == (wanted, data)
    assert (record.offset, record.timestamp, record.headers) == (9, 1000, (("h", b"1"),))


def test_tombstones_are_not_for_functions_and_formats_but_for_objects() -> None:
    record = ConsumerRecord("a", 0, 9, 1000, 0, None, None)
    assert [one.value for given in ("json", int, Objects()) for one in a_delivery([record], value=given).give(1)] == [
        None,
        None,
        ("a", [], None),
    ]


SCHEMA = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


def test_avro_and_protobuf_tell_the_place_of_what_is_not_theirs() -> None:
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
