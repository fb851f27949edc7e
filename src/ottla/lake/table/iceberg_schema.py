"""Columns of an Iceberg table: their Arrow types, and the changes that new rows need.

The rules of changes are those of Delta (`schema_evolution`), so types are compared as Delta's. Iceberg differs in what a change costs:

    new column, new member of a struct        metadata
    int to long, float to double,             metadata: readers convert the values of older files
    decimal to more digits, same scale
    int or long to double, other decimals     the table is rewritten, and the column gets a new id

Iceberg identifies columns by ids, which files have too. Columns of 8 and 16 bits become int.
"""

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import Schema
from pyiceberg.io.pyarrow import schema_to_pyarrow

from ottla.lake.table.delta import schema_of_arrow
from ottla.lake.table.schema_evolution import ColumnChange, Evolution, evolution

_IN_PLACE = {("integer", "long"), ("float", "double")}
_SMALL = {"byte": "integer", "short": "integer"}


def stored_schema(schema: Any) -> pa.Schema:
    """The columns of files: Arrow's schema with the ids of columns."""
    return pa.schema([_small(field) for field in schema_to_pyarrow(schema)])


def _small(field: Any) -> Any:
    return pa.field(field.name, _small_type(field.type), field.nullable, field.metadata)


def _small_type(kind: Any) -> Any:
    """Iceberg's Arrow types have offsets of 64 bits, those of records 32."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([_small(one) for one in kind])
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(_small(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(_small(kind.key_field), _small(kind.item_field))
    return kind


def field_id(field: Any) -> int | None:
    """The id of a column of a file."""
    text = (field.metadata or {}).get(b"PARQUET:field_id")
    return None if text is None else int(text)


def projected_members(arrays: Sequence[Any], rows: int, there: Sequence[Any], wanted: Sequence[Any]) -> list[Any]:
    """The columns of `wanted`, found by their ids among the columns `there` of a file; missing ones are null."""
    places = {field_id(one): place for place, one in enumerate(there)}
    found = []
    for one in wanted:
        place = places.get(field_id(one))
        found.append(pa.nulls(rows, one.type) if place is None else _projected(arrays[place], there[place], one))
    return found


def _projected(array: Any, there: Any, wanted: Any) -> Any:
    """A column in the type of the table. Raises: ArrowInvalid."""
    kind = wanted.type
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(kind):
        members = [pc.struct_field(array, [place]) for place in range(there.type.num_fields)]
        return pa.StructArray.from_arrays(
            projected_members(members, len(array), list(there.type), list(kind)), fields=list(kind), mask=mask
        )
    if pa.types.is_list(kind):
        items = _projected(array.flatten(), there.type.value_field, kind.value_field)
        return pa.ListArray.from_arrays(_ends(array), items, type=kind, mask=mask)
    if pa.types.is_map(kind):
        entries = array.cast(pa.list_(pa.struct([there.type.key_field, there.type.item_field])))
        keys, values = entries.flatten().flatten()
        keys, values = _projected(keys, there.type.key_field, kind.key_field), _projected(values, there.type.item_field, kind.item_field)
        return pa.MapArray.from_arrays(_ends(entries), keys, values, type=kind, mask=mask)
    return array.cast(kind)


def _ends(lists: Any) -> Any:
    """Offsets of lists into their flattened items."""
    sizes = pc.fill_null(pc.list_value_length(lists), 0)
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(sizes).cast(pa.int32())])


def columns_of(schema: Any) -> pa.Schema:
    """The columns for rows: Arrow's schema without ids."""
    return arrow_of(delta_of(stored_schema(schema)))


def delta_of(schema: pa.Schema) -> dict[str, Any]:
    """Delta's JSON schema of Arrow columns, without types that Iceberg lacks."""
    found: dict[str, Any] = _without_small(json.loads(schema_of_arrow(schema).to_json()))
    return found


def optional(schema: pa.Schema) -> pa.Schema:
    """The columns with values that may be null at each level: what a query never leaves empty today, it may tomorrow."""
    return pa.schema([_optional(field) for field in schema])


def _optional(field: Any) -> Any:
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_optional(one) for one in kind])
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = pa.list_(_optional(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(kind.key_field, _optional(kind.item_field))
    return pa.field(field.name, kind)


def arrow_of(schema: dict[str, Any]) -> pa.Schema:
    """Arrow's schema of Delta's JSON schema."""
    return pa.schema(Schema.from_json(json.dumps(schema)).to_arrow())


def _without_small(kind: Any) -> Any:
    if isinstance(kind, dict):
        # A column may be called byte. The metadata has ids.
        return {key: {} if key == "metadata" else value if key == "name" else _without_small(value) for key, value in kind.items()}
    if isinstance(kind, list):
        return [_without_small(one) for one in kind]
    return _SMALL.get(kind, kind) if isinstance(kind, str) else kind


def iceberg_evolution(schema: Any, rows: pa.Schema) -> Evolution:
    """What becomes of the columns when rows of `rows` come."""
    return evolution(delta_of(stored_schema(schema)), delta_of(rows))


def needs_rewrite(change: ColumnChange) -> bool:
    """Whether readers cannot convert the values of older files."""
    before, after = change.there or "", change.becomes
    if before.startswith("decimal(") and after.startswith("decimal("):
        return before.partition(",")[2] != after.partition(",")[2]
    return (before, after) not in _IN_PLACE


def top_level(change: ColumnChange, names: list[str]) -> str:
    """The column of a change; its path may name a member of it."""
    return max(
        (name for name in names if change.column == name or change.column.startswith((f"{name}.", f"{name}[", f"{name}{{"))), key=len
    )
