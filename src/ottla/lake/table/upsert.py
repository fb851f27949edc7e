"""Rows to merge: of each key the last, with the columns of the table.

Keys stay in their partition, as compaction of topics takes for granted, and rows wait in the order in which they were read, so the last is
the newest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ottla.lake.table.parquet_files import aligned
from ottla.lake.table.target import DELETED

if TYPE_CHECKING:
    import pyarrow as pa


def last_of_each(tables: Sequence[pa.Table], key: str, schema: pa.Schema) -> pa.Table | None:
    """One row per key, with the columns of `schema` and `DELETED`; None without rows."""
    import pyarrow as pa
    import pyarrow.compute as pc

    tables = [one for one in tables if one.num_rows]
    if not tables:
        return None
    wanted = schema.append(pa.field(DELETED, pa.bool_()))
    rows = pa.concat_tables([aligned(one, wanted) for one in tables])
    numbered = pa.table({"key": rows.column(key), "row": pa.array(range(rows.num_rows), pa.int64())})
    last = numbered.group_by("key").aggregate([("row", "max")]).column("row_max")
    if len(last) == rows.num_rows:
        return rows
    return rows.take(last.take(pc.sort_indices(last)))
