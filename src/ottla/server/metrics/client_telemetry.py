"""Metrics that clients pushed (KIP-714): decoded in a thread, the last value of each series kept for /metrics and OpenTelemetry.

The thread is one of its own, and gives up the interpreter lock after a fraction of a millisecond: a push of the largest size takes 0.1 s.
Pushes that it cannot keep up with are dropped. Above the limit of what is kept, clients of the address that has most are dropped, so that
nobody keeps out the metrics of others. The payload is OpenTelemetry's MetricsData, a protocol buffer; clients are not trusted, so the
decoder reads only what is shown, and every number is limited::

    MetricsData       1: ResourceMetrics  2: ScopeMetrics  2: Metric
    Metric            1: name  5: Gauge  7: Sum   (both 1: NumberDataPoint; other kinds are skipped)
    NumberDataPoint   4: double  6: sfixed64  7: KeyValue
    KeyValue          1: key  2: AnyValue   (1: string  2: bool  3: int64  4: double)
"""

import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from typing import Any, NamedTuple

from ottla.base.varint import read_varint
from ottla.broker import effects
from ottla.records.compression import Codec, decompress
from ottla.records.errors import RecordsError
from ottla.server.metrics.exposition import Pace, Sample, label_text

#: Bytes of a decompressed push; series of one push, and of all clients.
DECOMPRESSED_MAX = 8 << 20
SERIES_MAX, ALL_SERIES_MAX = 1_000, 50_000
#: Memory of the series of one push, and of all clients. A series of a Java client has some 400 bytes. One with 16 long labels has 20,000.
BYTES_MAX, ALL_BYTES_MAX = 1 << 20, 32 << 20
#: Of that, what a series has beside its labels.
SERIES_BYTES = 150
#: Fields of one push, of any kind: 1,000 series with 16 labels have some 80,000.
FIELDS_MAX = 100_000
#: Fields between two looks at the clock: some 50 µs.
FIELDS_PER_STEP = 64
#: Pushes that wait for the thread, and those of one address; each has up to telemetry.max.bytes.
WAITING_MAX, WAITING_OF_ADDRESS_MAX = 16, 8
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
    """What a client pushed last."""

    #: Its labels, and the values by labels of the series, as ``exposition`` writes them.
    labels: str
    values: dict[str, float]
    address: str
    #: Memory of the values.
    size: int
    #: Monotonic time until which they are kept.
    until_s: float


class ClientMetrics:
    """Metrics of the clients of a process. ``take`` runs on the event loop, ``receive`` in a thread, ``samples`` in that of the
    collection.
    """

    def __init__(
        self, threads: Executor | None = None, now_s: Callable[[], float] = time.monotonic, pace: Callable[[], Pace] = Pace
    ) -> None:
        """``threads``: has one thread, which decodes; None decodes at once."""
        self._threads = threads
        self._now_s = now_s
        self._pace = pace
        self._lock = threading.Lock()
        #: The ones that pushed longest ago first.
        self._clients: dict[bytes, TelemetryClient] = {}
        self._series = self._size = 0
        #: Memory of the values, by address of the clients.
        self._sizes: Counter[str] = Counter()
        #: Held for the count of pushes that wait, which the event loop needs while the other lock may be in use for milliseconds.
        self._waiting_lock = threading.Lock()
        #: Pushes that were taken and are not decoded, by address.
        self._waiting: Counter[str] = Counter()
        #: Pushes that were kept, those that were no metrics or too large, and those that the thread could not keep up with.
        self.pushes = self._refused = self._dropped = 0

    @property
    def rejected(self) -> int:
        """Pushes that were not kept."""
        return self._refused + self._dropped

    def take(self, effect: effects.ReceiveTelemetry) -> None:
        """Decodes a push in the thread, or drops it: if clients push faster than it decodes, or one address has too many that wait."""
        address = _address(effect)
        with self._waiting_lock:
            taken = self._waiting.total() < WAITING_MAX and self._waiting[address] < WAITING_OF_ADDRESS_MAX
            if taken:
                self._waiting[address] += 1
            else:
                self._dropped += 1
        if taken and self._threads is not None:
            self._threads.submit(self._decode, effect)
        elif taken:
            self._decode(effect)

    def close(self) -> None:
        """Ends the thread."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def _decode(self, effect: effects.ReceiveTelemetry) -> None:
        try:
            self.receive(effect)
        finally:
            with self._waiting_lock:
                self._waiting[_address(effect)] -= 1
                self._waiting += Counter()  # Removes addresses with none.

    def receive(self, effect: effects.ReceiveTelemetry) -> None:
        """Decodes a push, and replaces the client's series."""
        client = self._client(effect)
        with self._lock:
            self._expire()
            if client is not None:
                self._drop(effect.client_instance_id)
            if client is None or not self._make_room(client):
                self._refused += 1
                return
            self._clients[effect.client_instance_id] = client
            self._series += len(client.values)
            self._size += client.size
            self._sizes[client.address] += client.size
            self.pushes += 1

    def _client(self, effect: effects.ReceiveTelemetry) -> TelemetryClient | None:
        """None for a push that is malformed or too large."""
        values: dict[str, float] = {}
        size = 0
        try:
            data = effect.metrics
            if effect.compression:
                data = bytes(decompress(Codec(effect.compression), data, limit_bytes=DECOMPRESSED_MAX))
            for series in decoded(memoryview(data), self._pace().step):
                labels = label_text(metric=series.name, **{f"attribute_{name}": text for name, text in series.labels.items()})
                size += sys.getsizeof(labels) + SERIES_BYTES if labels not in values else 0
                values[labels] = series.value
                if size > BYTES_MAX:
                    return None
        except (Malformed, RecordsError):
            return None
        own = {
            "client_instance_id": effect.client_instance_id.hex(),
            "client_id": effect.attributes.get("client_id", "")[:TEXT_MAX],
            "client_software_name": effect.attributes.get("client_software_name", ""),
        }
        return TelemetryClient(label_text(**own), values, _address(effect), size, self._now_s() + effect.kept_ms / 1000)

    def samples(self) -> Iterator[Sample]:
        """A sample per series."""
        with self._lock:
            self._expire()
            clients = list(self._clients.values())
        for client in clients:
            for labels, value in client.values.items():
                yield "", f"{client.labels[:-1]},{labels[1:]}", value

    def _make_room(self, new: TelemetryClient) -> bool:
        """Drops clients of the address that has most, the ones that pushed longest ago; whether there is room without those of the own."""
        pace = self._pace()
        while self._series + len(new.values) > ALL_SERIES_MAX or self._size + new.size > ALL_BYTES_MAX:
            pace.step()
            [(address, size)] = self._sizes.most_common(1) or [("", 0)]
            if size <= self._sizes[new.address] + new.size:
                return False
            self._drop(next(number for number, client in self._clients.items() if client.address == address))
        return True

    def _expire(self) -> None:
        now_s = self._now_s()
        for number in [number for number, client in self._clients.items() if client.until_s <= now_s]:
            self._drop(number)

    def _drop(self, number: bytes) -> None:
        gone = self._clients.pop(number, None)
        if gone is not None:
            self._series -= len(gone.values)
            self._size -= gone.size
            self._sizes[gone.address] -= gone.size
            if not self._sizes[gone.address]:
                del self._sizes[gone.address]


def _address(effect: effects.ReceiveTelemetry) -> str:
    return effect.attributes.get("client_source_address", "")


def decoded(data: memoryview, step: Callable[[], None] = lambda: None) -> Iterator[Series]:
    """The series of a MetricsData. ``step`` is called every ``FIELDS_PER_STEP`` fields. Raises: Malformed."""
    return _Decoder(step).series(data)


class _Decoder:
    """Reads one push. A field has two bytes at least, so a push could have millions of them: their number is limited."""

    __slots__ = ("_left", "_step")

    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step
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
            if not self._left % FIELDS_PER_STEP:
                self._step()
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
    try:
        return read_varint(data, position)
    except EOFError as error:
        raise Malformed(str(error)) from None
