"""The status of a table: version, rows, files, columns, topic and offsets."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from ottla.lake.storage import Location, location
from ottla.lake.table.delta import opened
from ottla.lake.table.parquet_target import read_manifest
from ottla.lake.table.schema import TableFormat
from ottla.lake.table.schema_evolution import shown
from ottla.lake.table.target import FORM, MARKS, TOPIC, TOPIC_ID, TableConflict

if TYPE_CHECKING:
    from ottla.lake.table.iceberg_catalog import IcebergPlace


@dataclass(slots=True)
class TableStatus:
    kind: str
    topic: str
    topic_id: str
    form: TableFormat
    version: int
    rows: int
    files: int
    bytes: int
    #: Name and type.
    columns: list[tuple[str, str]]
    #: The next offset by partition.
    offsets: dict[int, int]


def status(where: "Location | Path | IcebergPlace") -> TableStatus:
    """Raises: TableConflict if there is no table of a topic."""
    if not isinstance(where, Location | Path):
        return _iceberg(where)
    directory = location(where)
    if directory.is_local and directory.holds(MARKS["iceberg"][0]):
        from ottla.lake.table.iceberg_catalog import embedded

        return _iceberg(embedded(directory))
    table = opened(directory)
    if table is not None:
        return _delta(directory, table)
    found = read_manifest(directory)
    if found is not None:
        columns = [(field["name"], str(field["type"])) for field in found.schema["fields"]]
        rows, size = sum(one.rows for one in found.files), sum(one.size for one in found.files)
        offsets = {int(partition): offset for partition, offset in found.offsets.items()}
        return TableStatus(
            "parquet", found.topic, found.topic_id, found.form, found.version, rows, len(found.files), size, columns, offsets
        )
    raise TableConflict(f"there is no table at {directory}")


def _delta(directory: Location, table: Any) -> TableStatus:
    settings = table.metadata().configuration
    if FORM not in settings:
        raise TableConflict(f"the table at {directory} was not made from a topic")
    files = pa.table(table.get_add_actions(flatten=True))
    rows, size = (sum(value or 0 for value in files.column(name).to_pylist()) for name in ("num_records", "size_bytes"))
    columns = [(field.name, shown(msgspec.json.decode(field.type.to_json()))) for field in table.schema().fields]
    form = msgspec.json.decode(settings[FORM], type=TableFormat)
    topic = settings[TOPIC]
    return TableStatus(
        "delta", topic, settings.get(TOPIC_ID, ""), form, table.version(), rows, files.num_rows, size, columns,
        _offsets(table, topic, GAP_MAX if directory.is_local else OBJECT_GAP_MAX),
    )  # fmt: skip


def _iceberg(place: "IcebergPlace") -> TableStatus:
    from ottla.lake.table.iceberg_catalog import opened_table
    from ottla.lake.table.iceberg_schema import columns_of, delta_of
    from ottla.lake.table.iceberg_target import form_of, offsets_of

    with opened_table(place) as table:
        form = form_of(table, place)
        snapshot = table.current_snapshot()
        totals = (snapshot.summary if snapshot is not None else None) or {}
        rows, files, size = (int(totals.get(f"total-{name}") or 0) for name in ("records", "data-files", "files-size"))
        columns = [(field["name"], shown(field["type"])) for field in delta_of(columns_of(table.schema()))["fields"]]
        topic, topic_id = table.properties[TOPIC], table.properties.get(TOPIC_ID, "")
        version = table.metadata.last_sequence_number
        return TableStatus("iceberg", topic, topic_id, form, version, rows, files, size, columns, offsets_of(table.metadata))


def _offsets(table: Any, topic: str, gap_max: int) -> dict[int, int]:
    """Probe partitions from 0 on, up to `gap_max` consecutive ones without an offset."""
    found: dict[int, int] = {}
    missing, partition = 0, 0
    while missing <= gap_max:
        offset = table.transaction_version(f"ottla/{topic}/{partition}")
        if offset is None:
            missing += 1
        else:
            found[partition], missing = offset, 0
        partition += 1
    return found


#: A table of some partitions of a topic may lack this many consecutive ones.
GAP_MAX = 1000
#: The same for an object store, where each probe is a request.
OBJECT_GAP_MAX = 16
