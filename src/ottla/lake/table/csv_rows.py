"""Values that are one line of CSV each into columns with given names and types; an empty field is null."""

import csv
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ottla.client.arrow.json import Decoded


def csv_values(texts: pa.Array, kind: pa.StructType) -> Decoded:
    """A struct per line; null, and unreadable, if a line has another number of fields, or a field of another type."""
    rows, bad, why = _fields(texts, kind.num_fields)
    columns = [pa.array(column, pa.string()) for column in (zip(*rows, strict=True) if rows else ([] for _ in kind))]
    arrays: list[Any] = []
    for field, column in zip(kind, columns, strict=True):
        column = pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column) if not pa.types.is_string(field.type) else column
        array, wrong = _cast(column, field.type)
        arrays.append(array)
        if wrong:
            why = why or f"column {field.name} is no {field.type} in some"
            bad.update(wrong)
    found = pa.StructArray.from_arrays(arrays, fields=list(kind)) if arrays else pa.nulls(len(texts), kind)
    if not bad:
        return Decoded(found)
    mask = pa.array([row in bad for row in range(len(texts))])
    return Decoded(pc.if_else(mask, pa.scalar(None, kind), found), mask, why)


def _fields(texts: Any, count: int) -> tuple[list[list[str | None]], set[int], str]:
    rows: list[list[str | None]] = []
    bad: set[int] = set()
    why = ""
    nothing: list[str | None] = [None] * count
    for place, text in enumerate(texts.to_pylist()):
        row: list[str | None] = nothing
        if text is not None:
            try:
                row = list(next(csv.reader([text.decode().rstrip("\r\n")], strict=True), []))
                if len(row) != count:
                    raise ValueError(f"{len(row)} fields where there should be {count}")
            except (ValueError, csv.Error) as error:
                bad.add(place)
                why, row = why or str(error), nothing
        rows.append(row)
    return rows, bad, why


def _cast(column: Any, kind: Any) -> tuple[Any, list[int]]:
    """A text column in its type, and the rows that do not fit."""
    if pa.types.is_binary(kind):
        return column.cast(kind), []
    try:
        return _typed(column, kind), []
    except pa.ArrowInvalid:
        found, wrong = [], []
        for place, text in enumerate(column):
            try:
                found.append(_typed(pa.array([text.as_py()], pa.string()), kind)[0].as_py())
            except pa.ArrowInvalid:
                found.append(None)
                wrong.append(place)
        return pa.array(found, kind), wrong


def _typed(column: Any, kind: Any) -> Any:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        # Arrow casts text without a time zone to types without one, and text with a zone to types with one.
        zoned = pc.match_substring_regex(column, r"(Z|[+-]\d\d:?\d\d)$")
        if not pc.all(pc.fill_null(zoned, True)).as_py():
            column = pc.if_else(zoned, column, pc.binary_join_element_wise(column, "Z", ""))
    return column.cast(kind)
