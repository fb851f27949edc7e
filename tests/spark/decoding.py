"""The columns that the source decodes from values, without Spark and brokers."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ottla.spark.source import rows
from ottla.spark.source.options import SourceOptions
from ottla.spark.source.rows import RowPlan
from ottla.spark.values import decode
from ottla.spark.values.decode import columns_of

BASE = {"bootstrap.servers": "h:1", "subscribe": "orders"}


def plan(schema: str | None, **options: str) -> RowPlan:
    """The plan of a query with this schema; None: without one."""
    value = SourceOptions.of({**BASE, **{name.replace("__", "."): text for name, text in options.items()}}, streaming=False).value
    assert value is not None
    found = rows.default_schema(value, ("orders",), headers=False) if schema is None else columns_of(schema)
    return RowPlan.of(found, value, ("orders",))


def decoded(given: list[bytes | None], schema: str | None, **options: str) -> list[dict[str, Any]]:
    """The columns of decoded values, as rows."""
    made = plan(schema, **options)
    assert made.value is not None
    kinds = decode.arrow_type(made.schema.json())
    found, _ = decode.decoded_columns(pa.array(given, pa.binary()), made.value, pa.schema(list(kinds)), list(made.decoded))
    for name, column in found.items():
        assert column.type == kinds.field(name).type, "Spark compares types"
    return pa.table(found).to_pylist()  # type: ignore[no-any-return]
