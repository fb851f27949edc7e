"""Values that are one line of CSV each into columns with given names and types; an empty field is null, except in a column of text."""

import csv

import pyarrow as pa
import pyarrow.compute as pc

from ottla.client.arrow.json import Decoded
from ottla.lake.casts import cast_or_null


def csv_values(texts: pa.Array, kind: pa.StructType) -> Decoded:
    """A struct per line; null, and unreadable, if a line has another number of fields, or a field of another type."""
    rows = [_fields(text, kind.num_fields) for text in texts.to_pylist()]
    bad = pa.array([row is None for row in rows], pa.bool_())
    arrays = []
    for place, field in enumerate(kind):
        column = pa.array([None if row is None else row[place] for row in rows], pa.string())
        if not pa.types.is_string(field.type):
            column = pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
        array, failed = cast_or_null(column, field.type)
        arrays.append(array)
        bad = bad if failed is None else pc.or_(bad, failed)
    found = pa.StructArray.from_arrays(arrays, fields=list(kind)) if arrays else pa.nulls(len(texts), kind)
    if not pc.any(bad).as_py():
        return Decoded(found)
    return Decoded(pc.if_else(bad, pa.scalar(None, kind), found), bad, "it is not a line of these columns")


def _fields(text: bytes | None, count: int) -> list[str] | list[None] | None:
    """The fields of a line, or nulls for a record without a value; None if the line is invalid or has another number of fields."""
    if text is None:
        return [None] * count
    try:
        row = next(csv.reader([text.decode().rstrip("\r\n")], strict=True), [])
    except (ValueError, csv.Error):
        return None
    return row if len(row) == count else None
