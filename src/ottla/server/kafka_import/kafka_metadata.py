"""What a Kafka cluster's metadata says: topics, partition states, settings, assigned producer ids, and what has no equal in Ottla.

``metadata_log.py`` reads it from KRaft's log, ``znodes.py`` from the nodes of ZooKeeper.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ottla.base.acls import Entry, Pattern
from ottla.base.ids import TopicId
from ottla.server.data_directory import CannotStart
from ottla.store.layout_quotas import QuotaEntity


class CannotImport(CannotStart):
    """An import is refused; the message is one line for the operator, with the remedy. Nothing was written."""


@dataclass(slots=True)
class SourcePartition:
    """The state of a partition in Kafka; ids are those of Kafka's brokers."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    #: Replicas that have all committed records although they are not in the ISR (KIP-966).
    elr: tuple[int, ...] = ()


@dataclass(slots=True)
class SourceTopic:
    """A topic in Kafka."""

    name: str
    topic_id: TopicId
    partitions: dict[int, SourcePartition] = field(default_factory=dict)


@dataclass(slots=True)
class KafkaMetadata:
    """The metadata of a cluster."""

    #: Where it was read.
    origin: str
    #: None where the metadata does not have it.
    cluster_id: str | None = None
    topics: dict[str, SourceTopic] = field(default_factory=dict)
    #: Settings by kind (topics, brokers, groups) and name, as in ``store/layout.py``.
    configs: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    #: Access rules by pattern.
    acls: dict[Pattern, list[Entry]] = field(default_factory=dict)
    #: Client quotas as text, by entity.
    quotas: dict[QuotaEntity, dict[str, str]] = field(default_factory=dict)
    #: Producer ids below it are assigned.
    next_producer_id: int = 0
    #: Registered brokers; empty where only live brokers are registered.
    brokers: set[int] = field(default_factory=set)
    #: Number of entries that Ottla has nothing for, by kind.
    without_equal: dict[str, int] = field(default_factory=dict)

    def count(self, kind: str, entries: Iterable[object] | int) -> None:
        """Counts what has no equal."""
        number = entries if isinstance(entries, int) else len(list(entries))
        if number:
            self.without_equal[kind] = self.without_equal.get(kind, 0) + number


#: Bytes of a file that is read at once. The largest are snapshots of producers: one of a million producers has 60 MB.
SMALL_FILE_MAX = 256 << 20


def open_regular(path: Path) -> int:
    """A descriptor for reading. The directory may come from another machine: a link in it could name any file of this one, and a pipe or a
    device has no end. Raises: CannotImport, OSError.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise not_regular(path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise not_regular(path)
    return descriptor


def not_regular(path: Path) -> CannotImport:
    return CannotImport(f"{path} is no regular file, but a link, a directory, a pipe or a device; Kafka has none there")


def read_small(path: Path) -> bytes:
    """The content of a file that Kafka keeps small. Raises: CannotImport, OSError."""
    with os.fdopen(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > SMALL_FILE_MAX:
            raise CannotImport(f"{path} has {size} bytes; it is damaged, because Kafka's have at most {SMALL_FILE_MAX}")
        return file.read()


class ReadOnlyFile:
    """A regular file opened for reading only."""

    def __init__(self, path: Path) -> None:
        """Raises: CannotImport, OSError."""
        self.path = str(path)
        self._file = os.fdopen(open_regular(path), "rb", buffering=0)
        self.size = os.fstat(self._file.fileno()).st_size

    def read(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes; fewer only at the end of the file."""
        self._file.seek(position)
        data = self._file.read(size) or b""
        while len(data) < size and (more := self._file.read(size - len(data))):
            data += more
        return data

    def close(self) -> None:
        self._file.close()
