"""Groups and committed offsets in the logs of ``__consumer_offsets``: the newest record of each key counts, as when a coordinator loads.

Offsets of a transaction count when its commit marker follows, unless an offset of the same partition was committed behind them. Source:
Kafka's OffsetMetadataManager.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from struct import Struct

from ottla.broker.groups.records import TYPES
from ottla.records.read import COMMIT_MARKER, control_record, records
from ottla.server.kafka_import.source import SourceLog

TOPIC = "__consumer_offsets"
_TYPE = Struct(">h")
#: Types of keys of committed offsets, of groups of the classic and of the consumer protocol, and of groups that Ottla does not have.
_OFFSETS, _CLASSIC, _CONSUMER = (0, 1), (2,), (3,)
#: Types of share groups (KIP-932) and streams groups (KIP-1071) that name a group.
_SHARE, _STREAMS = (11,), (17,)


@dataclass(slots=True)
class GroupRecords:
    """The newest value of each key."""

    values: dict[bytes, bytes] = field(default_factory=dict)

    def count(self, kinds: Iterable[int]) -> int:
        """Number of keys of these types."""
        return sum(1 for key in self.values if key_type(key) in kinds)

    @property
    def offsets(self) -> int:
        return self.count(_OFFSETS)

    @property
    def groups(self) -> int:
        """Number of groups: those with a group record, and those that only committed offsets."""
        return len({_group(key) for key in self.values if key_type(key) in (*_OFFSETS, *_CLASSIC, *_CONSUMER)})

    @property
    def without_equal(self) -> dict[str, int]:
        """Groups of kinds that Ottla does not have."""
        counts = {"share groups": self.count(_SHARE), "streams groups": self.count(_STREAMS)}
        return {kind: count for kind, count in counts.items() if count}

    def known(self) -> dict[bytes, bytes]:
        """The records of types that Ottla loads."""
        return {key: value for key, value in self.values.items() if key_type(key) in TYPES}


def key_type(key: bytes) -> int:
    """The type at the beginning of a key; -1 for a key that is too short."""
    return int(_TYPE.unpack_from(key)[0]) if len(key) >= _TYPE.size else -1


def _group(key: bytes) -> bytes:
    """The id of the group, the first string of each key."""
    (length,) = _TYPE.unpack_from(key, 2)
    return key[4 : 4 + length]


def read_groups(logs: Iterable[SourceLog]) -> GroupRecords:
    """Reads the logs of all partitions, one replica of each. Raises: OSError."""
    found = GroupRecords()
    for log in logs:
        _read_log(log, found)
    return found


def _read_log(log: SourceLog, found: GroupRecords) -> None:
    #: Offset in the log of the newest record of each key that counts.
    offsets: dict[bytes, int] = {}
    #: Records of open transactions by producer id.
    pending: dict[int, list[tuple[int, bytes, bytes | None]]] = {}

    def take(offset: int, key: bytes, value: bytes | None) -> None:
        if offset < offsets.get(key, -1):
            return
        offsets[key] = offset
        if value is None:
            found.values.pop(key, None)
        else:
            found.values[key] = value

    for base in log.bases:
        for _, header, batch in log.batches(base):
            if header.is_control:
                control = control_record(batch)
                ended = pending.pop(header.producer_id, ())
                if control is not None and control.kind == COMMIT_MARKER:
                    for record in ended:
                        take(*record)
                continue
            read = [(offset, key, value) for offset, _, key, value, _ in records(batch) if key is not None]
            if header.is_transactional:
                pending.setdefault(header.producer_id, []).extend(read)
                continue
            for record in read:
                take(*record)
