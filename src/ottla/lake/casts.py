"""Casts of Arrow columns that Arrow does not have: of nested columns by the names of their fields, and of columns with invalid values."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def fitted(array: Any, kind: Any) -> Any:
    """Casts a column: struct fields by name, null for a missing field; numbers and times by value. Raises: ArrowInvalid."""
    if array.type == kind:
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), kind)
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        return pa.StructArray.from_arrays([field_of(array, one.name, one.type) for one in kind], fields=list(kind), mask=mask)
    if pa.types.is_list(kind) and pa.types.is_list(array.type):
        items = fitted(array.flatten(), kind.value_type)
        sizes = pc.fill_null(pc.list_value_length(array), 0)
        ends = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(sizes).cast(pa.int32())])
        return pa.ListArray.from_arrays(ends, items, type=kind, mask=mask)
    return array.cast(kind)


def field_of(array: Any, name: str, kind: Any) -> Any:
    """A field of a struct column; null if the struct is null or lacks the field."""
    if array.type.get_field_index(name) < 0:
        return pa.nulls(len(array), kind)
    return fitted(pc.struct_field(array, name), kind)


def cast_or_null(column: Any, kind: Any) -> tuple[Any, Any]:
    """Casts a column; values that cannot be cast become null. Also returns their flags, None if there are none."""
    try:
        return _cast(column, kind), None
    except pa.ArrowInvalid:
        if len(column) == 1:
            return pa.nulls(1, kind), pa.array([True])
    middle = len(column) // 2
    parts = [cast_or_null(column.slice(first, size), kind) for first, size in ((0, middle), (middle, len(column) - middle))]
    bad = [pa.repeat(pa.scalar(False), len(values)) if failed is None else failed for values, failed in parts]
    joined = pa.concat_arrays(bad)
    return pa.concat_arrays([values for values, _ in parts]), joined if pc.any(joined).as_py() else None


def _cast(column: Any, kind: Any) -> Any:
    """Raises: ArrowInvalid."""
    if pa.types.is_timestamp(kind) and kind.tz is not None and pa.types.is_string(column.type):
        zoned = pc.match_substring_regex(column, r"([zZ]|[+-]\d\d:?(\d\d)?)$")
        # A date without time ends like a UTC offset.
        zoned = pc.and_(zoned, pc.match_substring_regex(column, ":"))
        none = pa.scalar(None, pa.string())
        local = pc.if_else(zoned, none, column).cast(pa.timestamp(kind.unit))
        return pc.coalesce(pc.if_else(zoned, column, none).cast(kind), pc.assume_timezone(local, "UTC").cast(kind))
    return column.cast(kind)
