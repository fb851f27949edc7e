"""Decodes JSON and CSV values to columns with Arrow's compiled parsers, one record batch at a time.

JSON: other fields are ignored, missing fields are null. A field must have its column's type: a number is not a STRING and text is not an
INT. Timestamps are ISO 8601 text, UTC without a zone; dates are `2026-05-17`; decimals are numbers or text.

CSV: one row per value, without a header, in the order of the schema. Empty text and `valueNull` are null. A row with fewer or more fields
than the schema is malformed.
"""

import csv
import io
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from ottla.client.arrow.json import Decoded, json_values
from ottla.lake.casts import cast_or_null, fitted
from ottla.spark.source.options import ValueOptions

#: A column with the row number, added in front. The mark before the number prevents a match with `valueNull`.
ROW, MARK = "\0row", "\x1f"


def json_decoder(target: Any) -> Callable[[Any], Decoded]:
    """Raises: ValueError for a type that JSON cannot be decoded to."""
    kind = _readable(target, "")

    def decode(raw: Any) -> Decoded:
        found = json_values(raw, kind)
        return found._replace(array=fitted(found.array, target))

    return decode


def _readable(kind: Any, name: str) -> Any:
    """The type with which Arrow parses a field before the cast to `kind`."""
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([(one.name, _readable(one.type, f"{name}.{one.name}".lstrip("."))) for one in kind])
    if types.is_list(kind):
        return pa.list_(_readable(kind.value_type, name))
    if types.is_date(kind):
        return pa.timestamp("s")
    if types.is_map(kind) or types.is_duration(kind) or types.is_interval(kind) or types.is_dictionary(kind):
        raise ValueError(f"field {name}: the source cannot decode JSON to {kind}; leave it out, or decode values with from_json")
    return kind


def csv_decoder(target: Any, options: ValueOptions) -> Callable[[Any], Decoded]:
    """Raises: ValueError for a nested type."""
    for one in target:
        if pa.types.is_nested(one.type):
            raise ValueError(f"field {one.name}: a CSV field is text and cannot be decoded to {one.type}; declare it as STRING")

    def decode(raw: Any) -> Decoded:
        texts, columns = _csv_texts(raw, [one.name for one in target], options)
        bad = texts
        children = []
        for column, one in zip(columns, target, strict=True):
            values, failed = cast_or_null(column, one.type)
            children.append(values)
            bad = _either(bad, failed)
        mask = raw.is_null() if bad is None else _either(raw.is_null(), bad)
        children = [_without(child, bad) for child in children]
        array = pa.StructArray.from_arrays(children, fields=list(target), mask=mask)
        return Decoded(array, bad, "it is not a row of these columns")

    return decode


def _csv_texts(raw: Any, names: list[str], options: ValueOptions) -> tuple[Any, list[Any]]:
    """Flags of bad rows (None: no bad row), and a column of text for each name."""
    rows = len(raw)
    texts, broken = cast_or_null(raw, pa.string())
    odd = pc.equal(pc.bit_wise_and(pc.count_substring(texts, '"'), 1), 1)
    alone = pc.fill_null(pc.or_(odd, pc.match_substring_regex(texts, "[\r\n]")), False)
    bulk = pc.and_(texts.is_valid(), pc.invert(alone))
    numbers = pa.array(range(rows), pa.int64())
    marks = pc.binary_join_element_wise(MARK, numbers.filter(bulk).cast(pa.string()), "")
    lines = pc.binary_join_element_wise(marks, texts.filter(bulk), options.separator)
    places, columns = pa.array([], pa.int64()), [pa.array([], pa.string()) for _ in names]
    if len(lines):
        data = "\n".join(lines.to_pylist()).encode() + b"\n"
        found = arrow_csv.read_csv(
            pa.BufferReader(data),
            read_options=arrow_csv.ReadOptions(column_names=[ROW, *names], block_size=len(data) + 1),
            parse_options=arrow_csv.ParseOptions(
                delimiter=options.separator, ignore_empty_lines=False, invalid_row_handler=lambda row: "skip"
            ),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys([ROW, *names], pa.string()),
                null_values=list({"", options.null}),
                strings_can_be_null=True,
            ),
        )
        marks, *columns = (found.column(index).combine_chunks() for index in range(len(names) + 1))
        places = pc.utf8_slice_codeunits(marks, len(MARK)).cast(pa.int64())
    for row, text in zip(numbers.filter(alone).to_pylist(), texts.filter(alone).to_pylist(), strict=True):
        fields = _one_row(text, options)
        if fields is not None and len(fields) == len(names):
            places = pa.concat_arrays([places, pa.array([row])])
            columns = [pa.concat_arrays([column, pa.array([field], pa.string())]) for column, field in zip(columns, fields, strict=True)]
    where = pc.index_in(numbers, places)
    bad = _either(broken, pc.and_(texts.is_valid(), where.is_null()))
    return bad, [column.take(where) for column in columns]


def _one_row(text: str, options: ValueOptions) -> list[str | None] | None:
    """Parses a row with quotes or line breaks inside; None: it is not one row."""
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=options.separator, strict=True))
    except csv.Error:
        return None
    if len(rows) != 1:
        return None
    return [None if field in ("", options.null) else field for field in rows[0]]


def _either(some: Any, others: Any) -> Any:
    """Logical or of two flag columns; None means no flag is set."""
    if some is None or others is None:
        return others if some is None else some
    return pc.or_(some, others)


def _without(column: Any, bad: Any) -> Any:
    return column if bad is None else pc.if_else(bad, pa.scalar(None, column.type), column)
