"""Iceberg tables of queries without Spark: batches that are there once, merges, partitions and columns."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)  # fmt: skip

from ottla.base.ids import TopicPartition
from ottla.cli.main import main
from ottla.lake.table.delta import RepeatedKeys, TableMismatch
from ottla.lake.table.iceberg_batches import BACKFILL, IcebergBatches
from ottla.lake.table.iceberg_catalog import IcebergPlace, embedded, local_file, opened_table
from ottla.lake.table.iceberg_partitions import parsed, partitions_of
from ottla.lake.table.iceberg_target import IcebergTarget
from ottla.lake.table.record_ranges import RecordRanges
from ottla.lake.table.schema import TableFormat
from ottla.lake.table.target import TableConflict, TableOrigin

pytestmark = pytest.mark.slow

AT = datetime(2026, 5, 17, 10, 30, tzinfo=UTC)
QUERY = "ottla/query/iceberg:t"


class Faults(SqlCatalog):  # type: ignore[misc]
    """A catalog whose next commits have faults."""

    kinds: list[str]

    def commit_table(self, *arguments: Any) -> Any:
        kind = self.kinds.pop(0) if self.kinds else ""
        if kind == "conflict":
            raise CommitFailedException("another commit was first")
        done = super().commit_table(*arguments)
        if kind == "lost answer":
            raise CommitStateUnknownException("the connection ended")
        return done


class FaultyPlace(IcebergPlace):
    def open(self) -> Any:
        catalog = Faults(self.catalog, **dict(self.properties))
        catalog.kinds = list(KINDS)
        return catalog


KINDS: list[str] = []


@pytest.fixture
def place(tmp_path: Path) -> IcebergPlace:
    return embedded(tmp_path / "t")


def batches(place: IcebergPlace) -> IcebergBatches:
    return IcebergBatches(place, pause=lambda _: None)


def written(
    table: IcebergBatches, batch: int, rows: list[dict[str, Any]], schema: pa.Schema | None = None, *, mode: str = "append",
    keys: tuple[str, ...] = (), partition_by: tuple[str, ...] = (), evolving: bool = False, application: str = QUERY,
) -> bool:  # fmt: skip
    return table.write(
        pa.Table.from_pylist(rows, schema), mode=mode, keys=keys, application=application, batch=batch, partition_by=partition_by,
        evolving=evolving,
    )  # fmt: skip


Rows = list[dict[str, Any]]


def rows_of(place: IcebergPlace) -> list[dict[str, Any]]:
    with opened_table(place) as table:
        return sorted(table.scan().to_arrow().to_pylist(), key=repr)


def test_a_batch_is_there_once_and_writers_do_not_share_numbers(place: IcebergPlace) -> None:
    table = batches(place)
    assert not table.has(QUERY, 0)
    assert written(table, 0, [{"n": 1}]) and written(table, 1, [{"n": 2}])
    assert not written(batches(place), 1, [{"n": 2}])
    assert written(table, 0, [{"n": 3}], application="another")
    assert rows_of(place) == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert table.has(QUERY, 1) and not table.has(QUERY, 2) and not table.has("another", 1)


def test_other_rows_of_a_batch_are_told_by_their_content(place: IcebergPlace) -> None:
    table = batches(place)
    table.ensure(pa.schema([("n", pa.int64())]))
    files = table.plan().files(None)
    files.write(pa.table({"n": [1]}))
    # Tasks write the files, another process commits them.
    assert batches(place).append(files.finish(), QUERY, 4, content=11)
    assert table.has(QUERY, 4) and table.has(QUERY, 4, 11) and not table.has(QUERY, 4, 12) and table.has(QUERY, 3, 12)


@pytest.mark.parametrize("kinds", [["lost answer"], ["conflict", "lost answer"], ["conflict", "conflict"]])
@pytest.mark.parametrize("mode", ["append", "merge", "replace"])
def test_a_commit_is_repeated_only_if_it_was_not_carried_out(
    place: IcebergPlace, monkeypatch: pytest.MonkeyPatch, kinds: list[str], mode: str
) -> None:
    keys = ("n",) if mode == "merge" else ()
    written(batches(place), 0, [{"n": 1, "of": 1}], mode=mode, keys=keys)
    monkeypatch.setattr(f"{__name__}.KINDS", kinds)
    faulty = FaultyPlace(place.catalog, place.properties, place.identifier, place.directory)
    assert written(batches(faulty), 1, [{"n": 2, "of": 2}], mode=mode, keys=keys)
    assert rows_of(place) == ([] if mode == "replace" else [{"n": 1, "of": 1}]) + [{"n": 2, "of": 2}]


def test_a_merge_replaces_rows_with_the_same_keys_where_nulls_are_equal(place: IcebergPlace) -> None:
    table = batches(place)
    keys = ("day", "name")
    days = (date(2026, 5, 16), date(2026, 5, 17))
    schema = pa.schema([("day", pa.date32()), ("name", pa.string()), ("n", pa.int64())])
    first: Rows = [{"day": day, "name": name, "n": 1} for day in (*days, None) for name in ("a", "", None)]
    assert written(table, 0, first, schema, mode="merge", keys=keys, partition_by=("day",))
    changed: Rows = [{"day": days[0], "name": None, "n": 2}, {"day": None, "name": "", "n": 2}, {"day": days[1], "name": "b", "n": 2}]
    assert written(table, 1, changed, schema, mode="merge", keys=keys)
    unchanged = [row for row in first if (row["day"], row["name"]) not in {(one["day"], one["name"]) for one in changed}]
    assert rows_of(place) == sorted([*unchanged, *changed], key=repr) and len(unchanged) == 7
    # A retried batch is written again: its rows may be others. An older one is not.
    assert written(table, 1, [{**changed[0], "n": 3}], schema, mode="merge", keys=keys)
    assert not written(table, 0, [{**changed[0], "n": 4}], schema, mode="merge", keys=keys)
    assert {"day": days[0], "name": None, "n": 3} in rows_of(place) and len(rows_of(place)) == 10
    with pytest.raises(RepeatedKeys, match="a batch has 2 rows with day = None, name = 'x'"):
        written(table, 2, [{"day": None, "name": "x", "n": n} for n in (1, 2)], schema, mode="merge", keys=keys)


def test_a_merge_leaves_files_without_these_keys_alone(place: IcebergPlace) -> None:
    table = batches(place)
    for number in range(3):
        written(table, number, [{"id": number, "name": "x"}], mode="merge", keys=("name", "id"))
    with opened_table(place) as before:
        there = {task.file.file_path for task in before.scan().plan_files()}
    written(table, 3, [{"id": 1, "name": "x"}], mode="merge", keys=("name", "id"))
    with opened_table(place) as after:
        assert len(there & {task.file.file_path for task in after.scan().plan_files()}) == 2


def test_a_replacement_has_only_the_rows_of_its_batch(place: IcebergPlace) -> None:
    table = batches(place)
    assert written(table, 0, [{"n": 1}, {"n": 2}], mode="replace")
    assert written(table, 1, [{"n": 3}], mode="replace")
    assert rows_of(place) == [{"n": 3}]


@pytest.mark.parametrize(
    ("field", "expected"),
    [("year(at)", {56}), ("month(at)", {56 * 12 + 4}), ("day(at)", {20590, 20591}), ("hour(at)", {494170, 494194}), ("name", {"a", None})],
)
def test_partitions_are_columns_and_parts_of_times(place: IcebergPlace, field: str, expected: set[Any]) -> None:
    table = batches(place)
    rows: Rows = [{"at": AT, "name": "a"}, {"at": AT.replace(day=18), "name": None}]
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("name", pa.string())])
    assert written(table, 0, rows, schema, partition_by=(field,))
    with opened_table(place) as found:
        assert {task.file.partition[0] for task in found.scan().plan_files()} == expected
        assert found.scan(row_filter="at >= '2026-05-18T00:00:00+00:00'").to_arrow().to_pylist() == rows[1:]
    assert written(table, 1, rows[:1], schema)
    assert table.compact().removed > 0
    assert rows_of(place) == sorted([*rows, rows[0]], key=repr)
    with pytest.raises(TableMismatch, match=r"is partitioned by .*; write to another one"):
        written(table, 2, rows, schema, partition_by=("hour(name)",))


def test_columns_are_fixed_or_evolve(place: IcebergPlace) -> None:
    table = batches(place)
    small, wide = pa.schema([("n", pa.int32())]), pa.schema([("n", pa.int64()), ("more", pa.string())])
    assert written(table, 0, [{"n": 1}], small)
    with pytest.raises(TableMismatch, match=r"has the columns {'n': 'integer'} and the results have"):
        written(table, 1, [{"n": 2, "more": "m"}], wide)
    assert written(table, 1, [{"n": 1 << 40, "more": "m"}], wide, evolving=True)
    assert written(table, 2, [{"n": 3}], small, evolving=True)
    assert rows_of(place) == [{"n": 1, "more": None}, {"n": 1 << 40, "more": "m"}, {"n": 3, "more": None}]
    with pytest.raises(TableMismatch, match="there is no column day for the partitions; there are n"):
        written(batches(embedded(place.directory.with_name("other"))), 0, [{"n": 1}], small, partition_by=("day",))  # type: ignore[union-attr]


def test_an_evolving_merge_keeps_columns_that_its_rows_lack(place: IcebergPlace) -> None:
    table = batches(place)
    first: Rows = [{"id": n, "name": f"n{n}", "at": [n, None]} for n in range(6)]
    # Two files, the second without some of the keys.
    written(table, 0, first[:3], mode="merge", keys=("id",))
    written(table, 1, first[3:], mode="merge", keys=("id",))
    assert written(table, 2, [{"id": n, "more": n * n} for n in (5, 7, 0)], mode="merge", keys=("id",), evolving=True)
    changed: Rows = [{**row, "more": row["id"] ** 2 if row["id"] in (0, 5) else None} for row in first]
    assert rows_of(place) == sorted([*changed, {"id": 7, "name": None, "at": None, "more": 49}], key=repr)


def test_columns_of_all_types_may_be_null_at_each_level(place: IcebergPlace) -> None:
    # Spark says that a literal in a struct is never null, also if the struct may be.
    never = pa.struct([pa.field("x", pa.int16(), nullable=False)])
    schema = pa.schema(
        [
            ("tiny", pa.int8()), ("small", pa.int16()), ("real", pa.float32()), ("yes", pa.bool_()), ("raw", pa.binary()),
            ("at", pa.timestamp("us")), ("money", pa.decimal128(10, 2)), ("one", never),
            ("many", pa.list_(pa.field("element", never, nullable=False))),
            ("named", pa.map_(pa.string(), pa.field("value", never, nullable=False))),
        ]
    )  # fmt: skip
    one: dict[str, Any] = {"tiny": 1, "small": 2, "real": 0.5, "yes": True, "raw": b"\xff", "at": AT.replace(tzinfo=None)}
    one |= {"money": Decimal("1.25"), "one": {"x": 1}, "many": [{"x": 2}], "named": {"k": {"x": 3}}}
    none = dict.fromkeys(schema.names)
    for number, rows in enumerate(([one], [none], [one, none])):
        assert written(batches(place), number, rows, schema, evolving=number == 2)
    # pyiceberg shows null lists of structs as empty ones, so the files are read.
    with opened_table(place) as found:
        files = [local_file(task.file.file_path) for task in found.scan().plan_files()]
    shown = [row for file in files for row in pq.ParquetFile(str(file)).read().to_pylist(maps_as_pydicts="strict")]
    assert sorted(shown, key=repr) == sorted([one, none, one, none], key=repr)


@pytest.mark.parametrize("transform", ["bucket[7]", "truncate[3]", "truncate[100]"])
def test_buckets_and_truncated_values_are_those_of_pyiceberg(transform: str) -> None:
    columns: dict[str, tuple[Any, IcebergType, list[Any]]] = {
        "int": (pa.int32(), IntegerType(), [0, 1, -1, -7, 34, 2**31 - 1]),
        "long": (pa.int64(), LongType(), [0, 34, -3, -(2**62), 2**63 - 1]),
        "date": (pa.date32(), DateType(), [date(2017, 11, 16), date(1969, 12, 31)]),
        "at": (pa.timestamp("us", "UTC"), TimestamptzType(), [AT, datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)]),
        "local": (pa.timestamp("us"), TimestampType(), [datetime(2017, 11, 16, 22, 31, 8)]),
        "money": (pa.decimal128(38, 2), DecimalType(38, 2), [Decimal("14.20"), Decimal("-0.01"), Decimal("9" * 36 + ".99")]),
        "text": (pa.string(), StringType(), ["iceberg", "", "a", "\U0001f600\U0001f600\U0001f600\U0001f600", "e\u0301te\u0301"]),
        "raw": (pa.binary(), BinaryType(), [b"\x00\x01\x02\x03", b"", b"\xff"]),
    }
    for name, (kind, source, values) in columns.items():
        function = parse_transform(transform)
        if not function.can_transform(source):
            continue
        values = [*values, None, *values]
        table = pa.table({name: pa.chunked_array([pa.array(values[:2], kind), pa.array(values[2:], kind)])})
        found = {
            row[name]: partition
            for (partition,), rows in partitions_of(table, [parsed(transform.replace("[", "(").replace("]", f", {name})"))])
            for row in rows.to_pylist()
        }
        wanted = {value: function.transform(source)(value) for value in values}
        assert found == wanted, name


def test_known_buckets_of_the_specification() -> None:
    # Appendix B of Iceberg's specification: hashes of 34, "iceberg" and a null.
    table = pa.table({"n": pa.array([34, None], pa.int64()), "s": ["iceberg", None]})
    found = {values for values, _ in partitions_of(table, [parsed("bucket(1000, n)"), parsed("bucket(1000, s)")])}
    assert found == {(2017239379 % 1000, 1210000089 % 1000), (None, None)}


def test_the_smallest_number_is_truncated_as_in_java() -> None:
    # Java's arithmetic overflows.
    table = pa.table({"n": pa.array([-(2**31), -(2**31) + 2], pa.int32())})
    assert [values for values, _ in partitions_of(table, [parsed("truncate(10, n)")])] == [(2**31 - 2,)]


def test_a_bucketed_table_is_merged_compacted_and_read_by_conditions(place: IcebergPlace) -> None:
    table = batches(place)
    fields = ("bucket(4, user)", "truncate(10, n)", "truncate(2, user)")
    schema = pa.schema([("user", pa.string()), ("n", pa.int64())])
    people: Rows = [{"user": f"{chr(97 + n % 3)}user{n}", "n": n} for n in range(-5, 25)]
    for number in range(3):
        given = [*people[number::3], {"user": None, "n": -number - 10}]
        assert written(table, number, given, schema, mode="merge", keys=("user", "n"), partition_by=fields)
    assert table.compact().removed
    assert written(table, 3, [{"user": "auser0", "n": 0}], schema, mode="merge", keys=("user", "n"), partition_by=fields)
    assert rows_of(place) == sorted([*people, *({"user": None, "n": -n} for n in (10, 11, 12))], key=repr)
    with opened_table(place) as found:
        assert [one.name for one in found.spec().fields] == ["user_bucket_4", "n_trunc_10", "user_trunc_2"]
        every = len(list(found.scan().plan_files()))
        for condition, wanted in (("user = 'cuser2'", {2}), ("n < -5", {-10, -11, -12}), ("user is null and n = -11", {-11})):
            scan = found.scan(row_filter=condition)
            assert set(scan.to_arrow().column("n").to_pylist()) == wanted and len(list(scan.plan_files())) < every


@pytest.mark.parametrize(
    ("field", "keys", "problem"),
    [
        ("hour(day)", (), r"hour\(day\) cannot be the partitions: hour cannot transform date values from day"),
        ("tags", (), "tags cannot be the partitions"),
        ("truncate(4, day)", (), r"truncate\(4, day\) cannot be the partitions: truncate\[4\] cannot transform date values"),
        ("day", ("tags",), "the key tags is of type list.* select its fields"),
    ],
)
def test_partitions_and_keys_that_cannot_be_are_refused(place: IcebergPlace, field: str, keys: tuple[str, ...], problem: str) -> None:
    rows: Rows = [{"day": date(2026, 5, 17), "tags": ["a"]}]
    with pytest.raises(TableMismatch, match=problem):
        written(batches(place), 0, rows, mode="merge" if keys else "append", keys=keys, partition_by=(field,))


@pytest.mark.parametrize("mode", ["append", "merge", "replace"])
def test_an_empty_batch_is_noted(place: IcebergPlace, mode: str) -> None:
    table, schema = batches(place), pa.schema([("n", pa.int64())])
    keys = ("n",) if mode == "merge" else ()
    assert written(table, 0, [], schema, mode=mode, keys=keys) and table.has(QUERY, 0)
    written(table, 1, [{"n": 1}], schema, mode=mode, keys=keys)
    assert written(table, 2, [], schema, mode=mode, keys=keys) and table.has(QUERY, 2)
    assert rows_of(place) == ([] if mode == "replace" else [{"n": 1}])


def test_files_of_a_killed_writer_are_in_no_snapshot_and_a_changed_partitioning_is_seen(place: IcebergPlace) -> None:
    table = batches(place)
    written(table, 0, [{"n": 1, "name": "a"}])
    files = table.plan().files(None)
    files.write(pa.table({"n": [2], "name": ["b"]}))
    lost = files.finish()
    assert rows_of(place) == [{"n": 1, "name": "a"}]
    with opened_table(place) as other, other.update_spec() as spec:
        spec.add_identity("name")
    with pytest.raises(TableConflict, match=r"the partitions of the table at .* were changed while rows were written"):
        table.append(lost, QUERY, 1)
    assert written(table, 1, [{"n": 2, "name": "b"}])
    assert len(rows_of(place)) == 2
    with opened_table(place) as other, other.update_spec() as spec:
        spec.add_field("n", "bucket[4]", "others_name")
    assert written(table, 2, [{"n": 3, "name": "b"}])
    with opened_table(place) as other, other.update_spec() as spec:
        spec.add_field("n", "void", "nothing")
    with pytest.raises(TableMismatch, match=r"partitioned by void of n; only year, .*, bucket, truncate and columns can be written"):
        written(table, 3, [{"n": 3, "name": "c"}])


RECORDS = RecordRanges({TopicPartition("t", 0): (2, 5), TopicPartition("t", 1): (0, 1)}, several_topics=False)
POSITIONS = pa.schema([("n", pa.int64()), ("_partition", pa.int32()), ("_offset", pa.int64())])


def at(n: int, partition: int | None, offset: int) -> dict[str, Any]:
    return {"n": n, "_partition": partition, "_offset": offset}


@pytest.mark.parametrize("kinds", [[], ["lost answer"], ["conflict", "lost answer"]])
def test_rows_of_records_are_replaced_in_one_commit_that_names_them(
    place: IcebergPlace, monkeypatch: pytest.MonkeyPatch, kinds: list[str]
) -> None:
    # Partitioned, in files of one batch; a row without a position is of no record.
    table = batches(place)
    first: Rows = [at(0, 0, 0), at(1, 0, 2), at(2, 0, 4), at(3, 0, 5), at(4, None, 3)]
    written(table, 0, first, POSITIONS, partition_by=("_partition",))
    written(table, 1, [at(5, 1, 0), at(6, 1, 0)], POSITIONS)
    written(table, 2, [at(7, 1, 1)], POSITIONS)
    monkeypatch.setattr(f"{__name__}.KINDS", kinds)
    faulty = batches(FaultyPlace(place.catalog, place.properties, place.identifier, place.directory))
    assert faulty.count_records(RECORDS) == 4
    with opened_table(place) as before:
        untouched = {task.file.file_path for task in before.scan(row_filter="n == 7 or _partition is null").plan_files()}
    new: Rows = [at(10, 0, 3), at(11, 0, 3)]
    faulty.replace_records(pa.Table.from_pylist(new, POSITIONS), RECORDS)
    assert [row["n"] for row in sorted(rows_of(place), key=lambda row: int(row["n"]))] == [0, 3, 4, 7, 10, 11]
    with opened_table(place) as found:
        summaries = [one.summary.get(BACKFILL) for one in found.snapshots()]
        assert untouched <= {task.file.file_path for task in found.scan().plan_files()} and len(untouched) == 2
    sql = "(_partition = 0 AND _offset >= 2 AND _offset < 5) OR (_partition = 1 AND _offset >= 0 AND _offset < 1)"
    assert summaries == [None, None, None, sql]
    # The batches of the query stay known.
    assert table.has(QUERY, 2) and not written(table, 2, [at(7, 1, 1)], POSITIONS) and faulty.count_records(RECORDS) == 2


def test_records_of_several_topics_are_told_by_their_topic_also_without_rows_before_or_after(place: IcebergPlace) -> None:
    table = batches(place)
    rows: Rows = [{**at(n, 0, 1), "_topic": topic} for n, topic in enumerate(("a", "b"))]
    written(table, 0, rows)
    nobody, of_b = (RecordRanges({TopicPartition(topic, 0): (0, 9)}, several_topics=True) for topic in ("c", "b"))
    for records, left in ((nobody, 2), (of_b, 1)):
        table.replace_records(table.columns().empty_table(), records)
        assert len(rows_of(place)) == left
    assert rows_of(place) == [rows[0]]


def test_records_in_a_file_of_a_writer_without_ids_are_not_replaced(place: IcebergPlace, tmp_path: Path) -> None:
    table = batches(place)
    written(table, 0, [at(0, 0, 0)], POSITIONS)
    pq.write_table(pa.Table.from_pylist([at(1, 0, 2)], POSITIONS), tmp_path / "foreign.parquet")
    with opened_table(place) as other:
        other.add_files([str(tmp_path / "foreign.parquet")])
    with pytest.raises(TableConflict, match="has no ids of columns"):
        table.replace_records(POSITIONS.empty_table(), RECORDS)
    assert len(rows_of(place)) == 2


def test_the_table_of_a_topic_is_not_written(place: IcebergPlace) -> None:
    target = IcebergTarget(place)
    form = TableFormat(value="json", key="text", columns=("key",))
    target.begin(TableOrigin("orders", "id"), form, pa.schema([("n", pa.int64()), *form.metadata_schema()]))
    with pytest.raises(TableConflict, match="is kept by ottla table sync"):
        written(batches(place), 0, [{"n": 1}])


def test_batches_are_known_after_their_snapshots_are_expired(place: IcebergPlace) -> None:
    table = batches(place)
    for number in range(3):
        written(table, number, [{"n": number}])
    written(table, 0, [{"n": 9}], application="another")
    command = ["table", "compact", str(place.directory), "--vacuum-hours", "0", "-o", "json"]
    done = CliRunner().invoke(main, command)
    assert (done.exit_code, json.loads(done.output)["merged_files"]) == (0, 4), done.output
    assert batches(place).has(QUERY, 2) and not written(batches(place), 2, [{"n": 2}])
    assert len(rows_of(place)) == 4


def test_a_table_of_format_version_1_is_refused_with_the_line_that_upgrades_it(place: IcebergPlace) -> None:
    table = batches(place)
    assert written(table, 0, [{"n": 1}])
    with opened_table(place) as made:
        identifier, schema, location = made.name(), made.schema(), made.location()
    catalog = place.open()
    catalog.drop_table(identifier)
    catalog.create_table(identifier, schema, location=f"{location}-1", properties={"format-version": "1"})
    catalog.close()
    for act in (lambda: written(batches(place), 1, [{"n": 2}]), lambda: rows_of(place)):
        with pytest.raises(TableConflict, match=r"has format version 1, .* ALTER TABLE .*'format-version' = '2'"):
            act()
