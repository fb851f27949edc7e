"""Metrics that clients pushed (KIP-714): decoded in a thread, the last value of each series kept for /metrics and OpenTelemetry.

The payload is OpenTelemetry's MetricsData, a protocol buffer; clients are not trusted, so the decoder reads only what is shown, and every
number is limited::

    MetricsData       1: ResourceMetrics  2: ScopeMetrics  2: Metric
    Metric            1: name  5: Gauge  7: Sum   (both 1: NumberDataPoint; other kinds are skipped)
    NumberDataPoint   4: double  6: sfixed64  7: KeyValue
    KeyValue          1: key  2: AnyValue   (1: string  2: bool  3: int64  4: double)
"""

import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ottla.broker import effects
from ottla.records.compression import Codec, decompress
from ottla.records.errors import RecordsError
from ottla.server.metrics.exposition import Sample, label_text

#: Bytes of a decompressed push; series of one push, and of all clients.
DECOMPRESSED_MAX = 8 << 20
SERIES_MAX, ALL_SERIES_MAX = 1_000, 50_000
#: Fields of one push, of any kind: 1,000 series with 16 labels have some 80,000. They take 0.2 s of processor time.
FIELDS_MAX = 100_000
#: Pushes that wait for a thread; each has up to telemetry.max.bytes.
WAITING_MAX = 16
#: Characters of a name or a label's value; labels of a series.
TEXT_MAX, LABELS_MAX = 200, 16
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class Malformed(ValueError):
    """A payload that is no MetricsData."""


class Series(NamedTuple):
    """The last value of a metric of a client."""

    name: str
    labels: Mapping[str, str]
    value: float


class TelemetryClient(NamedTuple):
    attributes: Mapping[str, str]
    series: list[Series]
    #: Monotonic time until which they are kept.
    until_s: float


class ClientMetrics:
    """Metrics of the clients of a process. ``admit`` runs on the event loop, ``receive`` in threads, ``samples`` in that of the
    collection.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._clients: dict[bytes, TelemetryClient] = {}
        self._count = 0
        #: Pushes that were admitted and are not decoded.
        self._waiting = 0
        #: Pushes that were kept, and those that were no metrics or too many.
        self.pushes = 0
        self.rejected = 0

    def admit(self) -> bool:
        """Whether a push may wait for a thread, which then calls ``receive``. If clients push faster than it is done, some are dropped."""
        with self._lock:
            admitted = self._waiting < WAITING_MAX
            self._waiting += admitted
            self.rejected += not admitted
        return admitted

    def receive(self, effect: effects.ReceiveTelemetry) -> None:
        """Decodes a push that was admitted, and replaces the client's series."""
        try:
            self._receive(effect)
        finally:
            with self._lock:
                self._waiting -= 1

    def _receive(self, effect: effects.ReceiveTelemetry) -> None:
        try:
            data = effect.metrics
            if effect.compression:
                data = bytes(decompress(Codec(effect.compression), data, limit_bytes=DECOMPRESSED_MAX))
            series = list(decoded(memoryview(data)))
        except (Malformed, RecordsError):
            with self._lock:
                self.rejected += 1
            return
        with self._lock:
            self._expire()
            self._drop(effect.client_instance_id)
            if self._count + len(series) > ALL_SERIES_MAX:
                self.rejected += 1
                return
            self._clients[effect.client_instance_id] = TelemetryClient(effect.attributes, series, self._now_s() + effect.kept_ms / 1000)
            self._count += len(series)
            self.pushes += 1

    def samples(self) -> Iterator[Sample]:
        """A sample per series."""
        with self._lock:
            self._expire()
            clients = list(self._clients.items())
        for number, client in clients:
            own = {
                "client_instance_id": number.hex(),
                "client_id": client.attributes.get("client_id", "")[:TEXT_MAX],
                "client_software_name": client.attributes.get("client_software_name", ""),
            }
            for series in client.series:
                labels = {"metric": series.name, **own, **{f"attribute_{name}": text for name, text in series.labels.items()}}
                yield "", label_text(**labels), series.value

    def _expire(self) -> None:
        now_s = self._now_s()
        for number in [number for number, client in self._clients.items() if client.until_s <= now_s]:
            self._drop(number)

    def _drop(self, number: bytes) -> None:
        gone = self._clients.pop(number, None)
        if gone is not None:
            self._count -= len(gone.series)


def decoded(data: memoryview) -> Iterator[Series]:
    """The series of a MetricsData. Raises: Malformed."""
    return _Decoder().series(data)


class _Decoder:
    """Reads one push. A field has two bytes at least, so a push could have millions of them: their number is limited."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        #: Fields that may still be read.
        self._left = FIELDS_MAX

    def series(self, data: memoryview) -> Iterator[Series]:
        """The series of a MetricsData. Raises: Malformed."""
        count = 0
        for resource in self._parts(data, 1):
            for scope in self._parts(resource, 2):
                for metric in self._parts(scope, 2):
                    for series in self._metric(metric):
                        count += 1
                        if count > SERIES_MAX:
                            raise Malformed(f"a push has at most {SERIES_MAX} series")
                        yield series

    def _metric(self, data: memoryview) -> Iterator[Series]:
        name, points = "", list[memoryview]()
        for number, _, value in self._fields(data):
            if number == 1 and isinstance(value, memoryview):
                name = _text(value)
            elif number in (5, 7) and isinstance(value, memoryview):
                points += self._parts(value, 1)
        for point in points:
            labels: dict[str, str] = {}
            found: float | None = None
            for number, kind, value in self._fields(point):
                if number == 7 and isinstance(value, memoryview):
                    key, text = self._attribute(value)
                    if key and len(labels) < LABELS_MAX:
                        labels[key] = text
                elif number == 4 and kind == FIXED64:
                    found = struct.unpack("<d", value)[0]
                elif number == 6 and kind == FIXED64:
                    found = float(struct.unpack("<q", value)[0])
            if name and found is not None:
                yield Series(name, labels, found)

    def _attribute(self, data: memoryview) -> tuple[str, str]:
        """A label: its name has only letters, digits and underscores."""
        key, text = "", ""
        for number, _, value in self._fields(data):
            if number == 1 and isinstance(value, memoryview):
                key = "".join(character if character.isascii() and character.isalnum() else "_" for character in _text(value))
            elif number == 2 and isinstance(value, memoryview):
                for kind, _, content in self._fields(value):
                    if kind == 1 and isinstance(content, memoryview):
                        text = _text(content)
                    elif kind in (2, 3) and isinstance(content, int):
                        text = str(content)
                    elif kind == 4 and isinstance(content, bytes):
                        text = repr(struct.unpack("<d", content)[0])
        return key, text

    def _parts(self, data: memoryview, wanted: int) -> Iterator[memoryview]:
        """The messages in a repeated field."""
        return (value for number, _, value in self._fields(data) if number == wanted and isinstance(value, memoryview))

    def _fields(self, data: memoryview) -> Iterator[tuple[int, int, Any]]:
        """(number, wire type, value) of each field: an int, 8 or 4 bytes, or a view. Raises: Malformed."""
        position, end = 0, len(data)
        while position < end:
            self._left -= 1
            if self._left < 0:
                raise Malformed(f"a push has at most {FIELDS_MAX} fields")
            tag, position = _varint(data, position)
            number, kind = tag >> 3, tag & 7
            value: Any
            if kind == VARINT:
                value, position = _varint(data, position)
            elif kind in (FIXED64, FIXED32):
                size = 8 if kind == FIXED64 else 4
                value = bytes(data[position : position + size])
                position += size
            elif kind == BYTES:
                size, position = _varint(data, position)
                value = data[position : position + size]
                position += size
            else:
                raise Malformed(f"there is no wire type {kind}")
            if position > end:
                raise Malformed("the data ends inside a field")
            yield number, kind, value


def _text(data: memoryview) -> str:
    return bytes(data[: 4 * TEXT_MAX]).decode(errors="replace")[:TEXT_MAX]


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise Malformed("a number is not complete, or has more than 64 bits")
        byte = data[position]
        position += 1
        found |= (byte & 127) << shift
        if byte < 128:
            return found, position
        shift += 7
