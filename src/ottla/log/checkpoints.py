"""The small text files of a log directory, as bytes: Kafka's checkpoints, partition.metadata, meta.properties, the clean stop marker.

A checkpoint is a version, a count and as many lines::

    0                       0
    2                       2
    orders 0 1700           3 0          leader-epoch-checkpoint: epoch, first offset
    orders 1 1650           5 120

They are replaced atomically, so a reader sees the old or the new content. A malformed one counts as absent if the log itself has the same
information (``read_*`` returns None); only a malformed meta.properties is refused.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from ottla.base.ids import LeaderEpoch, Offset, TopicId, TopicPartition, topic_id_from_text, topic_id_text
from ottla.log.errors import DirectoryRefused
from ottla.records.checksum import crc32c

_VERSION = "0"
#: In place of a topic: the row has the checksum of all other rows. No topic can have this name, and Kafka ignores rows of unknown
#: partitions.
_CHECKSUM_ROW = "#crc32c"
#: A comment of meta.properties with the checksum of all lines that are not comments.
_CHECKSUM_COMMENT = "#crc32c="
_REPAIR = "check the disk, then move the file away and start again: the file is created again, and the logs are kept"


def offsets_file(offsets: Mapping[TopicPartition, int], *, has_checksum: bool = False) -> bytes:
    """A checkpoint of one offset per partition."""
    return rows_file((f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()), has_checksum=has_checksum)


def rows_file(rows: Iterable[str], *, has_checksum: bool = False) -> bytes:
    """A checkpoint of these rows: a topic, a partition and the values, with spaces between them."""
    found = list(rows)
    return _lines([*found, f"{_CHECKSUM_ROW} 0 {_checksum(found)}"] if has_checksum and found else found)


def _checksum(lines: Iterable[str]) -> int:
    return crc32c("\n".join(lines).encode())


def read_offsets(data: bytes) -> dict[TopicPartition, Offset] | None:
    """Offsets by partition; None when the file is malformed or its checksum is wrong."""
    rows = _rows(data, 3)
    if rows is None:
        return None
    if rows and rows[-1][0] == _CHECKSUM_ROW and rows.pop()[2] != str(_checksum(map(" ".join, rows))):
        return None
    try:
        return {TopicPartition(topic, int(partition)): Offset(int(offset)) for topic, partition, offset in rows}
    except ValueError:
        return None


def epochs_file(epochs: Iterable[tuple[int, int]]) -> bytes:
    """A leader-epoch-checkpoint of (epoch, first offset)."""
    return _lines(f"{epoch} {offset}" for epoch, offset in epochs)


def read_epochs(data: bytes) -> list[tuple[LeaderEpoch, Offset]] | None:
    """(epoch, first offset), both increasing; None when the file is malformed or not in order."""
    rows = _rows(data, 2)
    if rows is None:
        return None
    try:
        epochs = [(LeaderEpoch(int(epoch)), Offset(int(offset))) for epoch, offset in rows]
    except ValueError:
        return None
    ordered = all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(epochs))
    return epochs if ordered and all(epoch >= 0 and offset >= 0 for epoch, offset in epochs) else None


def holes_file(offset: int) -> bytes:
    """A holes-checkpoint: the log has no holes from this offset on."""
    return _lines([str(offset)])


def read_holes(data: bytes) -> Offset | None:
    """The offset from which the log has no holes; None when the file is malformed."""
    rows = _rows(data, 1)
    return Offset(int(rows[0][0])) if rows and len(rows) == 1 and rows[0][0].isdecimal() else None


def missing_file(offset: int) -> bytes:
    """A missing-checkpoint: records below this offset are missing."""
    return _lines([str(offset)])


def read_missing(data: bytes) -> Offset:
    """The offset below which records are missing; 0, an unknown offset, when the file is malformed."""
    return read_holes(data) or Offset(0)


def read_scrubs(data: bytes) -> dict[TopicPartition, tuple[int, int]]:
    """For each log the next offset of the current scrub, or -1, and the end time of the last one; empty when the file is malformed."""
    try:
        return {TopicPartition(topic, int(number)): (int(offset), int(ms)) for topic, number, offset, ms in _rows(data, 4) or ()}
    except ValueError:
        return {}


def partition_metadata_file(topic_id: bytes) -> bytes:
    return f"version: 0\ntopic_id: {topic_id_text(topic_id)}".encode()


def read_partition_metadata(data: bytes) -> TopicId | None:
    """The topic id; None when the file is malformed, as after a power cut soon after the partition's creation."""
    try:
        fields = dict(line.split(": ", 1) for line in data.decode().splitlines() if line.strip())
        return topic_id_from_text(fields["topic_id"].strip()) if fields["version"].strip() == _VERSION else None
    except (KeyError, ValueError):
        return None


def clean_shutdown_file(broker_epoch: int, clean_since: int = -1) -> bytes:
    """The marker of a clean stop. ``clean_since`` is the broker epoch since which every stop was clean; Kafka ignores this key.

    Source: KIP-966.
    """
    content = {"version": 0, "brokerEpoch": broker_epoch}
    if clean_since >= 0:
        content["cleanSinceEpoch"] = clean_since
    return json.dumps(content, separators=(",", ":")).encode()


def read_clean_shutdown(data: bytes) -> tuple[int, int]:
    """The broker epoch at the clean stop, and the one since which every stop was clean; -1 if absent, as in old Kafka versions."""
    try:
        content = json.loads(data)
        epoch = int(content["brokerEpoch"])
        return epoch, int(content.get("cleanSinceEpoch", epoch))
    except (ValueError, KeyError, TypeError, AttributeError):
        return -1, -1


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """The owner of a log directory. None is a missing line, as in older versions of Kafka."""

    cluster_id: str | None
    broker_id: int | None
    #: Printed like topic ids: 22 characters.
    directory_id: bytes | None
    #: Ids of all directories with which the broker last served, this one included; None when it never did. An Ottla extension.
    siblings: tuple[bytes, ...] | None = None
    #: Number of changes of that set: it identifies a directory that was absent meanwhile. An Ottla extension.
    generation: int = 0

    def file(self, now_ms: int) -> bytes:
        """Version 0, with broker.id as in ZooKeeper clusters, in the format of Java's Properties."""
        written = datetime.fromtimestamp(now_ms / 1000, UTC)
        lines = ["#", written.strftime("#%a %b %d %H:%M:%S UTC %Y"), "version=0"]
        lines += [f"broker.id={self.broker_id}"] if self.broker_id is not None else []
        lines += [f"cluster.id={self.cluster_id}"] if self.cluster_id is not None else []
        lines += [f"directory.id={topic_id_text(self.directory_id)}"] if self.directory_id is not None else []
        if self.siblings is not None:
            lines += [f"ottla.directories={','.join(map(topic_id_text, self.siblings))}", f"ottla.generation={self.generation}"]
        lines.insert(2, f"{_CHECKSUM_COMMENT}{_checksum(lines[2:])}")
        return ("\n".join(lines) + "\n").encode()


def read_meta_properties(data: bytes, where: str) -> MetaProperties:
    """Reads versions 0 and 1 (with node.id). Raises: DirectoryRefused for any other content."""
    fields: dict[str, str] = {}
    lines = data.decode(errors="replace").splitlines()
    noted = [line for line in lines if line.startswith(_CHECKSUM_COMMENT)]
    if noted and noted != [f"{_CHECKSUM_COMMENT}{_checksum(line for line in lines if line and not line.startswith('#'))}"]:
        raise DirectoryRefused(f"{where}: meta.properties is damaged or was edited: its checksum is wrong; {_REPAIR}")
    for line in lines:
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith(("#", "!")):
            fields[name.strip()] = value.strip().replace("\\=", "=").replace("\\:", ":")
    version = fields.get("version", "0")
    if version not in ("0", "1"):
        raise DirectoryRefused(f"{where}: version {version} of meta.properties is not supported; {_REPAIR}")
    broker = fields.get("node.id" if version == "1" else "broker.id")
    directory, siblings = fields.get("directory.id"), fields.get("ottla.directories")
    try:
        return MetaProperties(
            fields.get("cluster.id"),
            int(broker) if broker is not None else None,
            bytes(topic_id_from_text(directory)) if directory is not None else None,
            tuple(bytes(topic_id_from_text(text)) for text in siblings.split(",")) if siblings is not None else None,
            int(fields.get("ottla.generation", 0)),
        )
    except ValueError as error:
        raise DirectoryRefused(f"{where}: meta.properties cannot be read: {error}; {_REPAIR}") from None


def _lines(lines: Iterable[str]) -> bytes:
    rows = list(lines)
    return "\n".join((_VERSION, str(len(rows)), *rows, "")).encode()


def _rows(data: bytes, columns: int) -> list[list[str]] | None:
    """The fields of each line below the count; empty for an empty file, which Kafka creates before its first write."""
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError:
        return None
    if len(lines) < 2:
        return [] if not data else None
    rows = [line.split() for line in lines[2:]]
    whole = lines[0] == _VERSION and lines[1] == str(len(rows)) and all(len(row) == columns for row in rows)
    return rows if whole else None
