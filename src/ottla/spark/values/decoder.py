"""The interface of the decoders of all value formats: a binary column to a struct column of the query's fields."""

from collections.abc import Callable
from typing import Any

from ottla.client.arrow.json import Decoded

#: Decodes a binary column to a struct column.
Decode = Callable[[Any], Decoded]


def fitted(array: Any, kind: Any) -> Any:
    """Casts a column: struct fields by name, null for a missing field; numbers and times by value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if array.type == kind:
        return array
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        children = [field_of(array, one.name, one.type) for one in kind]
        mask = pc.is_null(array) if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if pa.types.is_list(kind) and pa.types.is_list(array.type):
        items = fitted(array.flatten(), kind.value_type)
        sizes = pc.fill_null(pc.list_value_length(array), 0)
        ends = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(sizes).cast(pa.int32())])
        mask = pc.is_null(array) if array.null_count else None
        return pa.ListArray.from_arrays(ends, items, type=kind, mask=mask)
    return array.cast(kind)


def field_of(array: Any, name: str, kind: Any) -> Any:
    """A field of a struct column; null if the struct is null or lacks the field."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if array.type.get_field_index(name) < 0:
        return pa.nulls(len(array), kind)
    return fitted(pc.struct_field(array, name), kind)
