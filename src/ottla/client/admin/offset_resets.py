"""Computes the target offsets of a reset. Pure, so that a dry run shows exactly what happens.

           start                                          end
             |--------------------------------------------|
    earliest ^        current ^--- shift +n --->    latest ^        an offset, a file, another group: the given offset

Like Kafka's tool, an offset outside of the log is moved to the nearer end, with a note. A partition without a target is left unchanged.

Files with offsets:

    CSV     topic,partition,offset            one line each, as in Kafka's tool; or group,topic,partition,offset
    JSON    the output of `ottla group lag -o json` and `ottla group reset -o json`, or a list of {"topic", "partition", "offset"}
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from io import StringIO
from typing import Any, NamedTuple

import msgspec

from ottla.base.ids import TopicPartition

#: Names of an offset in a JSON file; the first one present counts.
OFFSET_FIELDS = ("offset", "to", "committed_offset")


class PartitionOffsets(NamedTuple):
    """A group's committed offset in a partition (None: none), and the range of the log; the end is exclusive."""

    committed: int | None
    start: int
    end: int


class Aim(NamedTuple):
    """The target offset, None to leave it unchanged, and a note."""

    offset: int | None
    note: str = ""


class Move(msgspec.Struct):
    """The change of one partition. `target` None: unchanged, for the reason in the note."""

    partition: TopicPartition
    committed: int | None
    target: int | None
    note: str = ""


Policy = Callable[[TopicPartition, PartitionOffsets], Aim]


def moves(partition_offsets: Mapping[TopicPartition, PartitionOffsets], policy: Policy) -> list[Move]:
    """Applies a policy to each partition, by topic and number."""
    planned = []
    for tp, known in sorted(partition_offsets.items()):
        aim = policy(tp, known)
        target, note = aim.offset, aim.note
        if target is not None:
            kept = min(max(target, known.start), known.end)
            if kept != target:
                note = f"{target} is {'before the start' if target < kept else 'after the end'} of the log"
            target = kept
        planned.append(Move(tp, known.committed, target, note))
    return planned


# -- policies


def to_earliest(tp: TopicPartition, known: PartitionOffsets) -> Aim:
    """Targets the log start."""
    return Aim(known.start)


def to_latest(tp: TopicPartition, known: PartitionOffsets) -> Aim:
    """Targets the log end."""
    return Aim(known.end)


def to_current(tp: TopicPartition, known: PartitionOffsets) -> Aim:
    """Keeps the offset, moved into the log's range; the log end if there is none."""
    return Aim(known.end, "nothing was committed") if known.committed is None else Aim(known.committed)


def to_offset(offset: int) -> Policy:
    """The same offset in every partition."""
    return lambda tp, known: Aim(offset)


def shift_by(count: int) -> Policy:
    """Moves by a number of records, back if negative."""

    def aim(tp: TopicPartition, known: PartitionOffsets) -> Aim:
        if known.committed is None:
            return Aim(None, "nothing was committed, so there is nothing to shift")
        return Aim(known.committed + count)

    return aim


def to_time(found: Mapping[TopicPartition, int]) -> Policy:
    """Offsets that ListOffsets returned for a time; -1 or none means the log end."""

    def aim(tp: TopicPartition, known: PartitionOffsets) -> Aim:
        offset = found.get(tp, -1)
        return Aim(known.end, "nothing was written since") if offset < 0 else Aim(offset)

    return aim


def to_given(offsets: Mapping[TopicPartition, int], source: str) -> Policy:
    """Offsets by partition, of another group or a file."""

    def aim(tp: TopicPartition, known: PartitionOffsets) -> Aim:
        return Aim(offsets[tp]) if tp in offsets else Aim(None, f"{source} has no offset for it")

    return aim


# -- files


def read_offsets(text: str, group: str) -> dict[TopicPartition, int]:
    """Offsets of a file in one of the module's formats; of a file with several groups, those of this one.

    Raises: ValueError with line and problem.
    """
    found = _from_json(text, group) if text.lstrip()[:1] in ("[", "{") else _from_csv(text, group)
    if not found:
        raise ValueError("the file has no offsets")
    return found


def write_csv(planned: Iterable[Move]) -> str:
    """The targets as CSV, one line per partition with a target."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows((*move.partition, move.target) for move in planned if move.target is not None)
    return out.getvalue()


def _from_csv(text: str, group: str) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for number, row in enumerate(csv.reader(StringIO(text), skipinitialspace=True), 1):
        cells = [cell.strip() for cell in row]
        if not any(cells) or (number == 1 and cells[-1] == "offset"):
            continue
        if len(cells) == 4:
            named, *cells = cells
            if named != group:
                continue
        try:
            topic, partition, offset = cells
            found[_place(topic, int(partition))] = _offset(int(offset))
        except ValueError as error:
            raise ValueError(f"line {number}: expected topic,partition,offset, found {','.join(row)!r} ({error})") from None
    return found


def _from_json(text: str, group: str) -> dict[TopicPartition, int]:
    try:
        rows = _rows(msgspec.json.decode(text), group)
    except msgspec.DecodeError as error:
        raise ValueError(f"no JSON: {error}") from None
    found: dict[TopicPartition, int] = {}
    for number, row in enumerate(rows, 1):
        try:
            offset = next(row[field] for field in OFFSET_FIELDS if field in row)
            if offset is not None:
                found[_place(row["topic"], row["partition"])] = _offset(offset)
        except (KeyError, TypeError, StopIteration, ValueError):
            wanted = " or ".join(OFFSET_FIELDS)
            raise ValueError(f"entry {number} needs topic, partition and {wanted}: {msgspec.json.encode(row).decode()[:100]}") from None
    return found


def _rows(value: Any, group: str) -> list[Any]:
    """The partition entries of a document: a list of them, or those of the group's object."""
    groups = [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict) and "partitions" in one]
    if not groups and isinstance(value, list):
        return value
    own = [one for one in groups if one.get("group") == group] or groups
    if len(own) != 1 or not isinstance(own[0]["partitions"], list):
        raise ValueError(f"the file holds {len(groups)} groups, none of them {group}")
    rows: list[Any] = own[0]["partitions"]
    return rows


def _place(topic: Any, partition: Any) -> TopicPartition:
    if not isinstance(topic, str) or not topic or not isinstance(partition, int) or partition < 0:
        raise ValueError("a partition is a topic and a number from 0 on")
    return TopicPartition(topic, partition)


def _offset(offset: Any) -> int:
    if not isinstance(offset, int) or offset < 0:
        raise ValueError("an offset is a number from 0 on")
    return offset
