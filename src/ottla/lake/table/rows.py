"""Converts records to rows of a table: values into the table's columns, and new columns for other fields.

    known columns       parsed with their types; a value that does not fit goes to `_corrupt` as a whole, and its columns are null
    other fields        types inferred from these records (JSON), or from the schema (Avro)
    only null so far    no column yet

If integers are followed by fractions, the column is widened if that is allowed (`Rows.widens`). Text that looks like a time stays text,
because later values may not; a schema can set another type.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from ottla.client.arrow.avro import AvroColumn, schema_faults
from ottla.client.arrow.json import Decoded, json_values
from ottla.client.arrow.values import ColumnFormat
from ottla.client.serializers import Avro
from ottla.lake.ddl import parse_schema
from ottla.lake.table.csv_rows import csv_values
from ottla.lake.table.delta import TableMismatch
from ottla.lake.table.json_rows import json_rows
from ottla.lake.table.schema import CORRUPT, DATE, FRAME_BYTES, TableFormat

#: Characters that Delta does not allow in column names.
_NOT_IN_NAMES = re.compile(r"[ ,;{}()\n\t=]")
#: None: the registry has no such schema.
SchemaById = Callable[[int], str | None]


class DecodedRows(NamedTuple):
    """Rows, and the number of unreadable values."""

    table: pa.Table
    corrupt: int = 0


class BadKey(ValueError):
    """A key that does not have the table's key format, in a table with rows by key."""


class Rows:
    """Converts records to rows. `schema_by_id` asks a registry. Raises: ValueError, ImportError."""

    def __init__(self, form: TableFormat, *, schema_by_id: SchemaById | None = None, widens: bool = False) -> None:
        self.form = form
        self.widens = widens
        self._schema_by_id = schema_by_id
        self._key = ColumnFormat({"raw": "bytes", "text": "str", "int": "int"}[form.key])
        self._given = parse_schema(form.schema) if form.schema is not None and form.value in ("json", "csv") else None
        #: By id; -1: the given schema.
        self._avro: dict[int, Avro] = {}
        #: Ids that the registry does not have, or whose schema has no columns; requested once each.
        self._unknown: set[int] = set()
        if form.value == "avro" and form.schema is not None and not form.framed:
            self._avro[-1] = Avro(form.schema)

    def first_schema(self, shown: Sequence[bytes | None] = ()) -> pa.Schema:
        """The columns of a new table: those of its schema, or inferred from sample values, then metadata columns."""
        beside = self.form.metadata_schema()
        given: list[Any] = []
        if self._given is not None:
            given = list(self._given)
        elif -1 in self._avro:
            given = list(AvroColumn.of(self._avro[-1].read_schema, {}).type)
        elif self.form.value == "json":
            given = list(json_rows(pa.array(shown, pa.binary()), pa.struct([])).array.type)
        taken = {field.name.lower() for field in beside}
        fields = []
        for field in given:
            fields.append(_friendly(field.with_name(_free(field.name, taken))))
            taken.add(fields[-1].name.lower())
        return pa.schema([*fields, *beside])

    def made(self, batch: pa.RecordBatch, there: pa.Schema) -> DecodedRows:
        """The rows of records, for a table with the columns `there`; they may have additional or wider ones.

        Raises: BadKey.
        """
        form, raw = self.form, batch.column("value")
        columns: dict[str, Any] = {}
        bad = None
        if form.value == "raw":
            columns["value"] = raw
        elif form.value == "text":
            decoded = ColumnFormat("str").decoded(raw)
            columns["value"], bad = decoded.array, decoded.bad
        else:
            decoded = self._decoded(raw, self._known(there))
            bad = decoded.bad
            columns |= _flat(decoded.array, {field.name.lower() for field in form.metadata_schema()})
        beside = form.metadata_schema()
        for name in form.columns:
            if name not in columns:
                columns[form.name(name)] = self._key_column(batch) if name == "key" else batch.column(name)
        corrupt = 0
        if CORRUPT in beside.names:
            columns[CORRUPT] = pa.nulls(len(raw), pa.binary()) if bad is None else pc.if_else(bad, raw, pa.scalar(None, pa.binary()))
            corrupt = 0 if bad is None else pc.sum(bad).as_py() or 0
        if form.by_date:
            columns[DATE] = batch.column("timestamp").cast(pa.date32(), safe=False)
        table = pa.table(columns)
        return DecodedRows(_cast(table, beside), corrupt)

    def _known(self, there: pa.Schema) -> pa.StructType:
        """The table's columns from values, in order."""
        if self._given is not None:
            return pa.struct(list(self._given))
        beside = set(self.form.metadata_schema().names)
        return pa.struct([field for field in there if field.name not in beside])

    def _decoded(self, raw: pa.Array, known: pa.StructType) -> Decoded:
        match self.form.value:
            case "json" if self._given is not None:
                return json_values(raw, known)
            case "json":
                return json_rows(raw, known, widens=self.widens)
            case "csv":
                return csv_values(raw, known)
        if not self.form.framed:
            return ColumnFormat(self._avro[-1]).decoded(raw)
        return self._framed(raw)

    def _framed(self, raw: pa.Array) -> Decoded:
        """Avro values with schema ids; the columns are those of all schemas. Unknown ids are unreadable values."""
        ids = [
            None if data is None or len(data) < FRAME_BYTES or data[0] else int.from_bytes(data[1:FRAME_BYTES], "big")
            for data in pc.binary_slice(raw, 0, FRAME_BYTES).to_pylist()
        ]
        numbers = pa.array(ids, pa.int64())
        known = [number for number in pc.unique(numbers.drop_null()).to_pylist() if self._is_known(number)]
        numbers = pc.if_else(pc.is_in(numbers, pa.array(known, pa.int64())), numbers, None)
        bad = pc.and_(raw.is_valid(), numbers.is_null())
        places, parts, wrong = [], [], []
        for number in known:
            where = pc.indices_nonzero(pc.fill_null(pc.equal(numbers, number), False))
            found = ColumnFormat(self._avro[number]).decoded(raw.take(where))
            places.append(where)
            parts.append(pa.table(_members(found.array)))
            wrong.append(pa.repeat(pa.scalar(False), len(where)) if found.bad is None else found.bad)
        if not parts:
            return Decoded(pa.nulls(len(raw), pa.struct([])), bad if pc.any(bad).as_py() else None, "no schema's id")
        try:
            together = pa.concat_tables(parts, promote_options="permissive").combine_chunks()
        except pa.ArrowException as error:
            numbers_told = ", ".join(map(str, known))
            raise TableMismatch(
                f"schemas {numbers_told} of the registry do not go into one table: {error}; say with --schema which one counts"
            ) from None
        order = pa.array([None] * len(raw), pa.int64())
        everywhere = pa.concat_arrays([place.cast(pa.int64()) for place in places])
        order = pc.replace_with_mask(order, numbers.is_valid(), pc.sort_indices(everywhere).cast(pa.int64()))
        rows = together.take(order)
        misread = pc.fill_null(pa.concat_arrays(wrong).take(order), False)
        bad = pc.or_(bad, misread)
        whole = rows.to_struct_array().combine_chunks()
        return Decoded(whole, bad if pc.any(bad).as_py() else None, "not of its schema")

    def _is_known(self, number: int) -> bool:
        """Whether the registry has a schema with this id that has columns; loads it."""
        if number in self._avro or number in self._unknown:
            return number in self._avro
        assert self._schema_by_id is not None, "framed values come with a registry"
        schema = self._schema_by_id(number)
        if schema is None or (avro := _with_columns(schema, number)) is None:
            self._unknown.add(number)
            return False
        self._avro[number] = avro
        return True

    def _key_column(self, batch: pa.RecordBatch) -> pa.Array:
        raw = batch.column("key")
        found = self._key.decoded(raw)
        if self.form.mode == "upsert":
            wrong = pc.or_(raw.is_null(), found.bad if found.bad is not None else pa.repeat(pa.scalar(False), len(raw)))
            if pc.any(wrong).as_py():
                row = pc.index(wrong, True).as_py()
                what = "no key" if raw[row].as_py() is None else f"a key that is not {self.form.key}"
                offset = batch.column("offset")[row]
                raise BadKey(
                    f"the record at offset {offset} has {what}, and rows are found by their keys: keep the table with --mode append"
                )
        elif found.bad is not None and self.form.key == "text":
            return pa.array([None if key is None else key.decode(errors="backslashreplace") for key in raw.to_pylist()], pa.string())
        return found.array.cast(pa.int64()) if self.form.key == "int" else found.array


def _with_columns(schema: str, number: int) -> Avro | None:
    """The reader of a schema; None if it is not Avro (registries have other types), or has no columns."""
    try:
        avro = Avro(schema, schema_id=number)
        AvroColumn.of(avro.read_schema, {})
    except schema_faults():
        return None
    return avro


def _members(array: Any) -> dict[str, Any]:
    """The members of a struct array, null where the struct is null."""
    if not pa.types.is_struct(array.type):
        return {"value": array}
    return dict(zip([field.name for field in array.type], array.flatten(), strict=True))


def _flat(array: Any, taken: set[str]) -> dict[str, Any]:
    """Columns of a struct array, without those that are all null."""
    taken, found = set(taken), {}
    for name, column in _members(array).items():
        if pa.types.is_null(column.type):
            continue
        free = _free(name, taken)
        taken.add(free.lower())
        found[free] = column
    return found


def _free(name: str, taken: set[str]) -> str:
    """A unique column name that Delta and Parquet allow; always the same for a field."""
    clean = _NOT_IN_NAMES.sub("_", name) or "_"
    if clean == name and name.lower() not in taken:
        return name
    return f"{clean}_{crc32(name.encode()) & 0xFFFF:04x}"


def _cast(table: pa.Table, beside: pa.Schema) -> pa.Table:
    """Metadata columns in the table's types, and types that Delta lacks in others."""
    fields = [field.with_type(beside.field(field.name).type) if field.name in beside.names else _friendly(field) for field in table.schema]
    return table.cast(pa.schema(fields))


def _friendly(field: Any) -> Any:
    """A column in a type that Delta has: times of day as text, durations as numbers."""
    if pa.types.is_time(field.type):
        return field.with_type(pa.string())
    return field.with_type(pa.int64()) if pa.types.is_duration(field.type) else field
