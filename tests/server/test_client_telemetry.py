"""Decoding and keeping the metrics that clients push."""

import random
import tracemalloc
from typing import Any

import pytest

from ottla.broker import effects
from ottla.records.compression import Codec, compress
from ottla.server.metrics import client_telemetry
from ottla.server.metrics.client_telemetry import SERIES_MAX, ClientMetrics, Malformed, decoded

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


def pushed(data: bytes, *, client: bytes = b"c" * 16, codec: Codec = Codec.NONE, kept_ms: int = 60_000) -> effects.ReceiveTelemetry:
    attributes = {"client_id": "app", "client_software_name": "java"}
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
    metrics = ClientMetrics(lambda: now[0])
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
    metrics.receive(pushed(payload(*[("m", number, {}) for number in range(4)])))
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


def test_pushes_that_threads_cannot_keep_up_with_are_dropped() -> None:
    metrics = ClientMetrics()
    admitted = [metrics.admit() for _ in range(client_telemetry.WAITING_MAX + 2)]
    assert admitted == [True] * client_telemetry.WAITING_MAX + [False, False] and metrics.rejected == 2
    metrics.receive(pushed(b"\xff"))
    assert metrics.admit()


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
