"""In which form a table is begun: as it is said, as it was begun before, or as the first records look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ottla.client.fetch.ranges import Range
from ottla.lake.table.schema import BESIDE, Form, checked, guessed
from ottla.lake.table.target import NotOurs, Origin, Target
from ottla.lake.table.topic import Lost, Topic

SAMPLE_RECORDS = 200


class Asked(NamedTuple):
    """What the user says; None: nothing."""

    value: str | None = None
    key: str | None = None
    columns: Sequence[str] | None = None
    schema: str | None = None
    by_date: bool = False
    mode: str | None = None
    #: Whether there is a registry, so that values may tell the ids of their schemas.
    registry: bool = False


class Settled(NamedTuple):
    """A form, and the values by which it was settled, if it was by them."""

    form: Form
    shown: Sequence[bytes | None] = ()


def settled(topic: Topic, target: Target, asked: Asked, range: Range) -> Settled | None:
    """The form; None where it is to be seen from records and there are none yet. Raises: ValueError, NotOurs, KafkaError."""
    there = target.form(Origin(topic.name, topic.topic_id))
    if there is not None:
        _same(there, asked)
        return Settled(there)
    value, key = asked.value, asked.key
    if value is None and asked.schema is not None:
        value = "avro" if asked.schema.lstrip()[:1] in ("{", "[") else "json"
    values: list[bytes | None] = []
    if value is None or key is None or value == "json":
        keys, values = sample(topic, range)
        if not keys and value is None:
            return None
        shown_key, shown_value = guessed(keys, values, registry=asked.registry)
        value, key = value or shown_value, key or shown_key
    mode = asked.mode or ("upsert" if topic.is_compacted() else "append")
    columns = BESIDE if asked.columns is None else tuple(dict.fromkeys(asked.columns))
    framed = value == "avro" and asked.schema is None and asked.registry
    return Settled(checked(Form(value, key, columns, asked.schema, asked.by_date, mode, framed)), values)


def _same(there: Form, asked: Asked) -> None:
    """Raises: NotOurs where something else is asked for than the table has."""
    pairs = {
        "--value": (there.value, asked.value),
        "--key": (there.key, asked.key),
        "--mode": (there.mode, asked.mode),
        "--schema": (there.schema, asked.schema),
        "--columns": (there.columns, None if asked.columns is None else tuple(dict.fromkeys(asked.columns))),
        "--partition-by": (there.by_date, asked.by_date or None),
    }
    for option, (has, wanted) in pairs.items():
        if wanted is not None and wanted != has:
            shown = ",".join(has) if isinstance(has, tuple) else "nothing" if has in (None, False) else has
            raise NotOurs(f"{option}: the table was begun with {shown}, and keeps to it; write to another directory for another form")


def sample(topic: Topic, range: Range) -> tuple[list[bytes | None], list[bytes | None]]:
    """Keys and values of some of the first records."""
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    offsets = topic.offsets(range)
    share = max(1, SAMPLE_RECORDS // max(1, len(offsets)))
    wanted = {partition: (start, min(end, start + share)) for partition, (start, end) in offsets.items() if start < end}

    def gone(_: Lost) -> None:
        return

    for read in topic.read(wanted, ("key", "value"), gone):
        for batch in read.batches:
            keys += batch.column("key").to_pylist()
            values += batch.column("value").to_pylist()
        if len(keys) >= SAMPLE_RECORDS:
            break
    return keys, values
