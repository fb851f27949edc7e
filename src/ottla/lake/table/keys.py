"""Rows that are compared by key columns, where nulls are equal.

A join of Arrow matches no nulls and does not know all types, so keys are compared as text beside a flag for null.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

#: No column has these names.
_KEY, _NULL, _LEFT, _RIGHT = "\0key", "\0null", "\0left", "\0right"


def comparable(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Keys as text, with flags for nulls."""
    columns: dict[str, Any] = {}
    for place, key in enumerate(keys):
        column = rows.column(key)
        text = column if pa.types.is_binary(column.type) else column.cast(pa.string()).cast(pa.binary())
        columns[f"{_KEY}{place}"] = pc.fill_null(text, b"")
        columns[f"{_NULL}{place}"] = column.is_null()
    return pa.table(columns)


def pairs(left: pa.Table, right: pa.Table, keys: Sequence[str]) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """The numbers of the rows of both tables that have the same keys, pair by pair."""
    compared = [
        comparable(rows, keys).append_column(name, pa.array(range(len(rows)), pa.int64()))
        for rows, name in ((left, _LEFT), (right, _RIGHT))
    ]
    same = compared[0].column_names[:-1]
    found = compared[0].join(compared[1], keys=same, join_type="inner")
    return found.column(_LEFT), found.column(_RIGHT)


def having(rows: pa.Table, others: pa.Table, keys: Sequence[str], *, matched: bool = True) -> "pa.ChunkedArray":
    """Whether each of `rows` has the keys of one of `others`; with `matched=False` whether it has not."""
    found = pc.is_in(pa.array(range(len(rows)), pa.int64()), value_set=pairs(rows, others, keys)[0].combine_chunks())
    return pa.chunked_array([found if matched else pc.invert(found)])
