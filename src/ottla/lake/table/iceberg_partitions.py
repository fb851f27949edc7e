"""Partitions of an Iceberg table, as a user writes them, and the rows of each.

    country                               the value of a column
    year(at) month(at) day(at) hour(at)   of a time or date, in UTC; readers find the files by conditions on the column itself
    bucket(16, user)                      one of 16 numbers, by Iceberg's hash of the value
    truncate(4, name)                     the first 4 characters or bytes; of a number, the next lower multiple of 4

Values are in Iceberg's form: dates and days since 1970, timestamps in microseconds, months and years since 1970.

Buckets, and truncated decimals, are computed by pyiceberg, once for each distinct value of the rows that are written together. It is
imported for them only, since that takes most of a second. Everything else is computed by Arrow.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ottla.client.arrow.optional import pa, pc

NAME_OF = re.compile(r"(year|month|day|hour)\((.+)\)")
#: bucket and truncate with their number.
WITH_NUMBER = re.compile(r"(bucket|truncate)\(\s*([1-9]\d{0,9})\s*,\s*(.+?)\s*\)")
#: As Iceberg writes them.
TRANSFORM = re.compile(r"identity|year|month|day|hour|(bucket|truncate)\[(\d+)\]")
NUMBER_MAX = 2**31 - 1
EPOCH_YEAR = 1970


class Partition(NamedTuple):
    """A field of the partitioning."""

    column: str
    #: identity, year, month, day, hour, bucket[N] or truncate[N].
    transform: str

    def __str__(self) -> str:
        found = TRANSFORM.fullmatch(self.transform)
        if found is not None and found[1]:
            return f"{found[1]}({found[2]}, {self.column})"
        return self.column if self.transform == "identity" else f"{self.transform}({self.column})"


def parsed(text: str) -> Partition:
    """The partition field that a user wrote. Raises: ValueError for bucket or truncate without its number."""
    if found := NAME_OF.fullmatch(text):
        return Partition(found[2], found[1])
    if (found := WITH_NUMBER.fullmatch(text)) and int(found[2]) <= NUMBER_MAX:
        return Partition(found[3], f"{found[1]}[{found[2]}]")
    if re.fullmatch(r"(bucket|truncate)\(.*\)", text):
        raise ValueError(f"{text} needs a number from 1 to {NUMBER_MAX} and a column, such as bucket(16, user) or truncate(4, name)")
    return Partition(text, "identity")


def partitioning_of(metadata: Any) -> tuple[Partition, ...]:
    """The fields of a table. Raises: ValueError for one that rows cannot be written to here."""
    schema = metadata.schema()
    found = []
    for one in metadata.spec().fields:
        name = schema.find_column_name(one.source_id)
        if not TRANSFORM.fullmatch(str(one.transform)):
            known = "year, month, day, hour, bucket, truncate and columns"
            raise ValueError(f"the table is partitioned by {one.transform} of {name}; only {known} can be written")
        if name not in (field.name for field in schema.fields):
            raise ValueError(f"the table is partitioned by {name}, a member of a struct; only columns can be written")
        found.append(Partition(name, str(one.transform)))
    return tuple(found)


def partitions_of(table: "pa.Table", fields: Sequence[Partition]) -> Iterator[tuple[tuple[Any, ...], "pa.Table"]]:
    """The values of each partition, and its rows."""
    if not fields:
        yield (), table
        return
    names = [str(place) for place in range(len(fields))]
    values = pa.table([_values(table.column(one.column), one.transform) for one in fields], names=names)
    numbered = values.append_column("row", pa.array(range(len(table)), pa.int64()))
    # Null is a value like others here.
    groups = numbered.group_by(names).aggregate([("row", "list")]).combine_chunks()
    for place, group in enumerate(groups.select(names).to_pylist()):
        yield tuple(group[name] for name in names), table.take(groups.column("row_list")[place].values)


def _values(column: Any, transform: str) -> Any:
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        # Already in UTC; without the zone no function looks for its rules.
        column = column.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))
    match transform:
        case "year":
            return pc.subtract(pc.year(column), EPOCH_YEAR).cast(pa.int32())
        case "month":
            years = pc.multiply(pc.subtract(pc.year(column), EPOCH_YEAR), 12)
            return pc.add(years, pc.subtract(pc.month(column), 1)).cast(pa.int32())
        case "day":
            return (
                column.cast(pa.date32()).cast(pa.int32())
                if pa.types.is_date(kind)
                else pc.floor_temporal(column, unit="day").cast(pa.date32()).cast(pa.int32())
            )
        case "hour":
            hours = pc.floor_temporal(column, unit="hour").cast(pa.timestamp("us")).cast(pa.int64())
            return pc.divide(hours, 3_600_000_000).cast(pa.int32())
    found = TRANSFORM.fullmatch(transform)
    if found is not None and found[1] == "bucket":
        return _by_pyiceberg(column, transform, pa.int32())
    if found is not None and found[1] == "truncate":
        return _truncated(column, int(found[2]))
    if pa.types.is_date(kind):
        return column.cast(pa.date32()).cast(pa.int32())
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us")).cast(pa.int64())
    return column


def _truncated(column: Any, width: int) -> Any:
    kind = column.type
    if pa.types.is_string(kind):
        return pc.utf8_slice_codeunits(column, 0, width)
    if pa.types.is_binary(kind):
        return pc.binary_slice(column, 0, width)
    if pa.types.is_decimal(kind):
        return _by_pyiceberg(column, f"truncate[{width}]", kind)
    numbers = column.cast(pa.int64())
    # Arrow's division rounds towards zero. Near the smallest number the result overflows, as it does in Iceberg's Java.
    rest = pc.subtract(numbers, pc.multiply(pc.divide(numbers, width), width))
    rest = pc.if_else(pc.less(rest, 0), pc.add(rest, width), rest)
    return pc.subtract(numbers, rest).cast(kind, safe=False)


def _by_pyiceberg(column: Any, transform: str, result: Any) -> Any:
    """A transform of pyiceberg, of each distinct value once."""
    distinct = column.combine_chunks().dictionary_encode()
    if isinstance(distinct, pa.ChunkedArray):
        distinct = distinct.combine_chunks()
    convert = _function(transform, column.type)
    values = pa.array([convert(value) for value in distinct.dictionary.to_pylist()], result)
    return values.take(distinct.indices)


def _function(transform: str, kind: Any) -> Callable[[Any], Any]:
    from pyiceberg import types
    from pyiceberg.transforms import parse_transform

    if pa.types.is_decimal(kind):
        source: types.IcebergType = types.DecimalType(kind.precision, kind.scale)
    elif pa.types.is_date(kind):
        source = types.DateType()
    elif pa.types.is_timestamp(kind):
        source = types.TimestampType()
    elif pa.types.is_string(kind):
        source = types.StringType()
    elif pa.types.is_binary(kind):
        source = types.BinaryType()
    else:
        source = types.LongType()
    function: Callable[[Any], Any] = parse_transform(transform).transform(source)
    return function
