"""Groups and committed offsets in the logs of ``__consumer_offsets``: the newest record of each key counts, as when a coordinator loads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from struct import Struct

from ottla.broker.groups.records import TYPES
from ottla.records.read import ABORT_MARKER, control_record, records
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
    #: Transactions in the logs that were aborted or not ended: their offsets count as committed here.
    unfinished: int = 0

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
        pending: set[int] = set()
        for base in log.bases:
            for _, header, batch in log.batches(base):
                if header.is_control:
                    pending.discard(header.producer_id)
                    control = control_record(batch)
                    found.unfinished += control is not None and control.kind == ABORT_MARKER
                    continue
                if header.is_transactional:
                    pending.add(header.producer_id)
                for _, _, key, value, _ in records(batch):
                    if key is None:
                        continue
                    if value is None:
                        found.values.pop(key, None)
                    else:
                        found.values[key] = value
        found.unfinished += len(pending)
    return found
