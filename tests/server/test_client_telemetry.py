"""Decoding and keeping the metrics that clients push."""

import contextlib
import random
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

import pytest

from ottla.broker import effects
from ottla.records.compression import Codec, compress
from ottla.server.metrics import client_telemetry
from ottla.server.metrics.client_telemetry import (
    ALL_BYTES_MAX,
    FIELDS_MAX,
    LABELS_MAX,
    SERIES_MAX,
    WAITING_MAX,
    WAITING_OF_ADDRESS_MAX,
    ClientMetrics,
    Malformed,
    decoded,
)
from ottla.server.metrics.exposition import WORK_S, Pace

metrics_pb2 = pytest.importorskip("opentelemetry.proto.metrics.v1.metrics_pb2")


def payload(*values: tuple[str, Any, dict[str, Any]], summed: bool = False) -> bytes:
    """MetricsData with a metric of one point each, made by OpenTelemetry's own classes."""
    data = metrics_pb2.MetricsData()
    scope = data.resource_metrics.add().scope_metrics.add()
    for name, value, attributes in values:
        metric = scope.metrics.add(name=name)
        point = (metric.sum if summed else metric.gauge).data_points.add()
        if isinstance(value, float):
            point.as_double = value
        else:
            point.as_int = value
        for key, text in attributes.items():
            kind = {str: "string_value", bool: "bool_value", int: "int_value", float: "double_value"}[type(text)]
            setattr(point.attributes.add(key=key).value, kind, text)
    return bytes(data.SerializeToString())


def pushed(
    data: bytes, *, client: bytes = b"c" * 16, codec: Codec = Codec.NONE, kept_ms: int = 60_000, address: str = "10.0.0.1"
) -> effects.ReceiveTelemetry:
    attributes = {"client_id": "app", "client_software_name": "java", "client_source_address": address}
    return effects.ReceiveTelemetry(client_instance_id=client, attributes=attributes, compression=codec, metrics=data, kept_ms=kept_ms)


def test_gauges_and_sums_are_read_with_their_attributes() -> None:
    attributes = {"broker.id": 1, "ok": True, "topic": "t", "share": 0.5}
    found = list(decoded(memoryview(payload(("a", -7, attributes), ("b", 1.5, {})) + payload(("c", 2**40, {}), summed=True))))
    assert [(one.name, one.value) for one in found] == [("a", -7.0), ("b", 1.5), ("c", float(2**40))]
    assert found[0].labels == {"broker_id": "1", "ok": "1", "topic": "t", "share": "0.5"}


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_pushes_are_kept_whatever_their_compression(codec: Codec) -> None:
    metrics = ClientMetrics()
    data = payload(("org.apache.kafka.producer.record.send.rate", 12.5, {"topic": "t"}))
    metrics.receive(pushed(data if codec is Codec.NONE else bytes(compress(codec, data)), codec=codec))
    [(_, labels, value)] = metrics.samples()
    assert value == 12.5 and 'metric="org.apache.kafka.producer.record.send.rate"' in labels and 'attribute_topic="t"' in labels
    assert 'client_id="app"' in labels and (metrics.pushes, metrics.rejected) == (1, 0)


def test_a_later_push_replaces_the_series_and_silent_clients_are_forgotten() -> None:
    now = [0.0]
    metrics = ClientMetrics(now_s=lambda: now[0])
    metrics.receive(pushed(payload(("a", 1, {}), ("b", 2, {}))))
    metrics.receive(pushed(payload(("a", 3, {}))))
    metrics.receive(pushed(payload(("a", 4, {})), client=b"d" * 16, kept_ms=120_000))
    assert [value for _, _, value in metrics.samples()] == [3.0, 4.0]
    now[0] = 61.0
    assert [value for _, _, value in metrics.samples()] == [4.0]


def test_a_push_that_is_no_metrics_or_too_large_is_counted_and_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = ClientMetrics()
    metrics.receive(pushed(b"\xff" * 30))
    metrics.receive(pushed(b"not gzip", codec=Codec.GZIP))
    metrics.receive(pushed(bytes(compress(Codec.ZSTD, bytes(client_telemetry.DECOMPRESSED_MAX + 1))), codec=Codec.ZSTD))
    metrics.receive(pushed(payload(*[("m", number, {}) for number in range(SERIES_MAX + 1)])))
    monkeypatch.setattr(client_telemetry, "ALL_SERIES_MAX", 3)
    metrics.receive(pushed(payload(*[(f"m{number}", number, {}) for number in range(4)])))
    assert (list(metrics.samples()), metrics.pushes, metrics.rejected) == ([], 0, 5)


@pytest.mark.parametrize("tag", [b"\x0a\x00", b"\x08\x00", b"\x0a\x04\x12\x02\x12\x00"])
def test_a_push_of_very_many_fields_takes_neither_time_nor_memory(tag: bytes) -> None:
    """8 MiB of empty fields are 10 KiB compressed; as objects they took 800 MB and 7 s."""
    data = memoryview(tag * (client_telemetry.DECOMPRESSED_MAX // len(tag)))
    tracemalloc.start()
    with pytest.raises(Malformed, match="fields"):
        list(decoded(data))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 30 << 20


class Thread(Executor):
    """Keeps calls until the test runs them."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.calls.append(partial(fn, *args, **kwargs))
        return Future()


def test_pushes_that_the_thread_cannot_keep_up_with_are_dropped() -> None:
    thread = Thread()
    metrics = ClientMetrics(thread)
    for number in range(WAITING_MAX + 2):
        metrics.take(pushed(b"\xff", address=f"10.0.0.{number}"))
    assert len(thread.calls) == WAITING_MAX and metrics.rejected == 2
    thread.calls.pop(0)()
    metrics.take(pushed(payload(("a", 1, {}))))
    assert len(thread.calls) == WAITING_MAX and metrics.rejected == 3
    thread.calls.pop()()
    assert [value for _, _, value in metrics.samples()] == [1.0]


def test_pushes_of_one_address_leave_places_for_others() -> None:
    """It can use a new client instance id for each, and so has no interval between them."""
    thread = Thread()
    metrics = ClientMetrics(thread)
    for number in range(10 * WAITING_MAX):
        metrics.take(pushed(b"\xff", client=number.to_bytes(16), address="10.0.0.66"))
    assert len(thread.calls) == WAITING_OF_ADDRESS_MAX < WAITING_MAX
    metrics.take(pushed(payload(("a", 1, {}))))
    for call in thread.calls:
        call()
    assert [value for _, _, value in metrics.samples()] == [1.0]


@pytest.mark.parametrize("text", ["v" * 200, "\U0001f600" * 120], ids=["one byte", "four bytes"])
def test_small_pushes_of_long_labels_do_not_fill_the_memory(text: str) -> None:
    """50 pushes of 4 KB, each of 8 MB when decompressed, kept 500 MB."""
    labels = {f"key{number}": text for number in range(LABELS_MAX)}
    data = bytes(compress(Codec.ZSTD, payload(*[(f"m{number}", number, labels) for number in range(50)])))
    metrics = ClientMetrics()
    tracemalloc.start()
    for number in range(200):
        metrics.receive(pushed(data, client=number.to_bytes(16), codec=Codec.ZSTD))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert metrics.pushes > 5 and metrics.rejected > 5 and kept < 1.1 * ALL_BYTES_MAX
    metrics.receive(pushed(payload(*[(f"m{number}", number, labels) for number in range(1_000)]), client=b"z" * 16))
    assert not any('metric="m999"' in labels for _, labels, _ in metrics.samples()), "one client keeps a part of that only"


def test_an_address_with_very_many_series_keeps_nobody_else_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_telemetry, "ALL_SERIES_MAX", 20)
    metrics = ClientMetrics()
    for number in range(30):
        metrics.receive(pushed(payload(("mine", number, {})), client=number.to_bytes(16), address="10.0.0.66"))
    assert (metrics.pushes, metrics.rejected) == (20, 10)
    for number in range(15):
        metrics.receive(pushed(payload(("honest", number, {})), client=bytes(15) + bytes([100 + number]), address=f"10.0.1.{number}"))
    kept = [value for _, labels, value in metrics.samples() if 'metric="honest"' in labels]
    assert kept == list(range(15)) and len(list(metrics.samples())) == 20
    metrics.receive(pushed(payload(("mine", 1, {})), client=bytes(15) + bytes([99]), address="10.0.0.66"))
    assert len([1 for _, labels, _ in metrics.samples() if 'metric="honest"' in labels]) == 15


def test_a_series_that_is_sent_twice_is_kept_once() -> None:
    metrics = ClientMetrics()
    metrics.receive(pushed(payload(("a", 1, {"k": "v"}), ("a", 2, {"k": "v"}), ("a", 3, {"k": "w"}))))
    assert sorted(value for _, _, value in metrics.samples()) == [2.0, 3.0]


@pytest.mark.parametrize(
    "data", [b"\x0a\x00" * FIELDS_MAX, b"\x0a\x80\x80\x04" + b"\x08\x00" * (1 << 15)], ids=["many resources", "one resource"]
)
def test_a_large_push_is_decoded_in_small_pieces(data: bytes) -> None:
    """Each field takes 1 µs, and nothing else takes time."""
    now_s, held, began_s = 0.0, [0.0], 0.0

    def clock() -> float:
        return now_s

    def pause(duration_s: float) -> None:
        nonlocal began_s
        held.append(now_s - began_s)
        began_s = now_s

    class Counted(client_telemetry._Decoder):
        def _fields(self, data: memoryview) -> Iterator[tuple[int, int, Any]]:
            nonlocal now_s
            for field in super()._fields(data):
                now_s += 1e-6
                yield field

    with contextlib.suppress(Malformed):
        list(Counted(Pace(clock=clock, sleep=pause).step).series(memoryview(data)))
    assert len(held) > 50 and max(held) < WORK_S + 1e-4


def test_random_bytes_are_malformed_or_nothing() -> None:
    rng = random.Random(7)
    good = payload(("a", 1, {"k": "v"}), ("b", 2.5, {}))
    for _ in range(3_000):
        data = bytearray(good)
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            assert len(list(decoded(memoryview(bytes(data[: rng.randint(0, len(data))]))))) <= SERIES_MAX
        except Malformed:
            continue
