"""Resolves the format of a table: from the existing table, else from the options, else inferred from the first records."""

from collections.abc import Sequence
from typing import NamedTuple

from ottla.client.fetch.ranges import Range
from ottla.lake.table.schema import METADATA_COLUMNS, TableFormat, checked, infer_formats
from ottla.lake.table.target import TableConflict, TableOrigin, Target
from ottla.lake.table.topic import LostRecords, Topic

SAMPLE_RECORDS = 200


class RequestedFormat(NamedTuple):
    """The options of the user; None: not set."""

    value: str | None = None
    key: str | None = None
    columns: Sequence[str] | None = None
    schema: str | None = None
    by_date: bool = False
    mode: str | None = None
    #: Whether there is a schema registry, so values may start with a schema id.
    registry: bool = False


class ResolvedFormat(NamedTuple):
    """A format, and the sample values from which it was inferred."""

    form: TableFormat
    sample_values: Sequence[bytes | None] = ()


def resolve_format(topic: Topic, target: Target, asked: RequestedFormat, range: Range) -> ResolvedFormat | None:
    """The format; None if it depends on records and the topic is empty. Raises: ValueError, TableConflict, KafkaError."""
    existing = target.form(TableOrigin(topic.name, topic.topic_id))
    if existing is not None:
        _check_unchanged(existing, asked)
        return ResolvedFormat(existing)
    value, key = asked.value, asked.key
    if value is None and asked.schema is not None:
        value = "avro" if asked.schema.lstrip()[:1] in ("{", "[") else "json"
    values: list[bytes | None] = []
    if value is None or key is None or value == "json":
        keys, values = sample(topic, range)
        if not keys and value is None:
            return None
        shown_key, shown_value = infer_formats(keys, values, registry=asked.registry)
        value, key = value or shown_value, key or shown_key
    mode = asked.mode or ("upsert" if topic.is_compacted() else "append")
    columns = METADATA_COLUMNS if asked.columns is None else tuple(dict.fromkeys(asked.columns))
    framed = value == "avro" and asked.schema is None and asked.registry
    return ResolvedFormat(checked(TableFormat(value, key, columns, asked.schema, asked.by_date, mode, framed)), values)


def _check_unchanged(existing: TableFormat, asked: RequestedFormat) -> None:
    """Raises: TableConflict if an option differs from the table."""
    pairs = {
        "--value": (existing.value, asked.value),
        "--key": (existing.key, asked.key),
        "--mode": (existing.mode, asked.mode),
        "--schema": (existing.schema, asked.schema),
        "--columns": (existing.columns, None if asked.columns is None else tuple(dict.fromkeys(asked.columns))),
        "--partition-by": (existing.by_date, asked.by_date or None),
    }
    for option, (has, requested) in pairs.items():
        if requested is not None and requested != has:
            shown = ",".join(has) if isinstance(has, tuple) else "nothing" if has in (None, False) else has
            raise TableConflict(f"{option}: the table was created with {shown}, which cannot change; write to another directory")


def sample(topic: Topic, range: Range) -> tuple[list[bytes | None], list[bytes | None]]:
    """Keys and values of the first records."""
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    offsets = topic.offsets(range)
    share = max(1, SAMPLE_RECORDS // max(1, len(offsets)))
    ranges = {partition: (start, min(end, start + share)) for partition, (start, end) in offsets.items() if start < end}

    def gone(_: LostRecords) -> None:
        return

    for read in topic.read(ranges, ("key", "value"), gone):
        for batch in read.batches:
            keys += batch.column("key").to_pylist()
            values += batch.column("value").to_pylist()
        if len(keys) >= SAMPLE_RECORDS:
            break
    return keys, values
