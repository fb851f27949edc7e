"""Iceberg tables of topics without a broker: commits, offsets, columns, files, readers and the options of catalogs."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

import pyarrow as pa
from click.testing import CliRunner
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import StaticTable

from ottla.cli.main import main
from ottla.lake.table.delta import Overtaken, TableMismatch
from ottla.lake.table.iceberg_catalog import CatalogOptionError, IcebergPlace, embedded, in_catalog, opened_table
from ottla.lake.table.iceberg_schema import projected_members
from ottla.lake.table.iceberg_target import IcebergTarget
from ottla.lake.table.schema import TableFormat
from ottla.lake.table.status import status
from ottla.lake.table.target import DELETED, DeltaTarget, TableConflict, TableOrigin
from serving import SOURCE

pytestmark = pytest.mark.slow

ORIGIN = TableOrigin("orders", "id")
FORM = TableFormat(value="json", key="text", columns=("key",))
COLUMNS = pa.schema([("n", pa.int64()), *FORM.metadata_schema()])


@pytest.fixture
def place(tmp_path: Path) -> IcebergPlace:
    return embedded(tmp_path / "t")


def a_target(place: IcebergPlace, form: TableFormat = FORM, columns: pa.Schema = COLUMNS) -> IcebergTarget:
    target = IcebergTarget(place, pause=lambda _: None)
    target.form(ORIGIN)
    target.begin(ORIGIN, form, columns)
    return target


def put(target: IcebergTarget, before: int, rows: list[dict[str, Any]], schema: pa.Schema | None = None) -> None:
    """One commit of rows of partition 0, which has `before` records."""
    files = target.files()
    files.write(pa.Table.from_pylist(rows, schema))
    target.commit(files.finish(), {0: before} if before else {}, {0: before + len(rows)})


def numbers(place: IcebergPlace) -> list[Any]:
    with opened_table(place) as table:
        return sorted(table.scan().to_arrow().column("n").to_pylist())


class Faults(SqlCatalog):  # type: ignore[misc]
    """A catalog whose next commits have faults: lost answer, not there, conflict."""

    kinds: list[str]

    def commit_table(self, *arguments: Any) -> Any:
        kind = self.kinds.pop(0) if self.kinds else ""
        if kind == "not there":
            raise CommitStateUnknownException("the server said 502")
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


# -- commits and offsets


def test_a_writer_that_ends_between_files_and_commit_leaves_no_rows(place: IcebergPlace) -> None:
    killed = a_target(place)
    put(killed, 0, [{"n": 0}])
    files = killed.files()
    files.write(pa.table({"n": [1, 2]}))
    files.finish()
    again = a_target(place)
    assert again.positions([0, 1]) == {0: 1}
    put(again, 1, [{"n": 1}, {"n": 2}])
    assert numbers(place) == [0, 1, 2]
    assert again.vacuum(0) > 0
    assert place.directory is not None
    assert len(list(place.directory.rglob("*.parquet"))) == 2 and numbers(place) == [0, 1, 2]


def test_of_two_writers_the_slower_one_is_refused(place: IcebergPlace) -> None:
    slow, fast = a_target(place), a_target(place)
    files = slow.files()
    files.write(pa.table({"n": [0]}))
    written = files.finish()
    put(fast, 0, [{"n": 0}, {"n": 1}])
    for _ in ("first try", "a try after it knows of the other"):
        with pytest.raises(Overtaken, match="another process syncs"):
            slow.commit(written, {}, {0: 1})
    assert numbers(place) == [0, 1]


def test_writers_that_show_their_version_at_the_same_time_do_not_disturb_each_other(place: IcebergPlace) -> None:
    targets = [a_target(place) for _ in range(4)]
    with ThreadPoolExecutor(len(targets)) as writers:
        for done in [writers.submit(target._show_version) for target in targets for _ in range(100)]:
            done.result()
    assert place.directory is not None
    hint, *others = sorted(place.directory.rglob("version-hint*"))
    assert others == [], "files under way are gone"
    assert (hint.parent / f"{hint.read_text()}.metadata.json").exists()


@pytest.mark.parametrize("kinds", [["lost answer"], ["not there", "conflict", "not there"], ["conflict", "lost answer"]])
def test_a_commit_whose_answer_is_lost_or_that_meets_a_conflict_counts_once(
    kinds: list[str], place: IcebergPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_target(place).close()
    monkeypatch.setattr(sys.modules[__name__], "KINDS", kinds)
    target = a_target(FaultyPlace(place.catalog, place.properties, (), place.directory))
    put(target, 0, [{"n": 0}, {"n": 1}])
    put(target, 2, [{"n": 2}])
    assert numbers(place) == [0, 1, 2] and target.positions([0]) == {0: 3}


def test_commits_of_other_writers_do_not_disturb_the_offsets(place: IcebergPlace) -> None:
    target = a_target(place)
    put(target, 0, [{"n": 0}])
    with opened_table(place) as other:
        other.append(pa.table({"n": [100]}))
        put(target, 1, [{"n": 1}])
        other.delete("n = 100")
    assert target.positions([0]) == {0: 2} and a_target(place).positions([0]) == {0: 2}
    assert numbers(place) == [0, 1]


def test_a_rollback_of_the_table_rolls_its_offsets_back(place: IcebergPlace) -> None:
    target = a_target(place)
    put(target, 0, [{"n": 0}])
    put(target, 1, [{"n": 1}])
    with opened_table(place) as table:
        table.manage_snapshots().rollback_to_snapshot(table.snapshots()[0].snapshot_id).commit()
    with pytest.raises(Overtaken):
        put(target, 2, [{"n": 2}])
    again = a_target(place)
    assert again.positions([0]) == {0: 1}
    put(again, 1, [{"n": 1}])
    assert numbers(place) == [0, 1]


def test_offsets_survive_the_expiry_of_all_own_snapshots_but_no_rollback_beyond_them(place: IcebergPlace) -> None:
    target = a_target(place)
    put(target, 0, [{"n": 0}])
    with opened_table(place) as other:
        own, others = other.current_snapshot(), other.append(pa.table({"n": [100]})) or other.current_snapshot()
        other.maintenance.expire_snapshots().by_id(own.snapshot_id).commit()
    assert a_target(place).positions([0]) == {0: 1}
    put(target, 1, [{"n": 1}])
    with opened_table(place) as other:
        other.manage_snapshots().rollback_to_snapshot(others.snapshot_id).commit()
    with pytest.raises(TableConflict, match=r"was rolled back to a snapshot without ottla\.offsets"):
        a_target(place).positions([0])


def test_keys_are_merged_and_deleted_in_one_snapshot(place: IcebergPlace) -> None:
    target = a_target(place, TableFormat(value="json", key="text", columns=("key",), mode="upsert"))
    for number, key in enumerate("abc"):
        put(target, number, [{"n": number, "_key": key}])
    version = target.version
    changed = pa.table({"n": [10, None, 30], "_key": ["a", "b", "d"], "_corrupt": pa.nulls(3, pa.binary()), DELETED: [False, True, False]})
    target.merge(changed, {0: 3}, {0: 6})
    with opened_table(place) as table:
        rows = table.scan().to_arrow().select(["_key", "n"]).to_pylist()
    assert sorted((row["_key"], row["n"]) for row in rows) == [("a", 10), ("c", 2), ("d", 30)]
    assert target.version == version + 1 and target.positions([0]) == {0: 6}


# -- columns


HEADERS = pa.schema([("n", pa.int64()), ("h", pa.list_(pa.struct([("k", pa.string())])))])


def stored_values(place: IcebergPlace, column: str) -> list[Any]:
    """The values in the files, by the column n."""
    import pyarrow.parquet as pq

    with opened_table(place) as table:
        paths = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    rows = [row for path in paths for row in pq.ParquetFile(path).read().to_pylist()]
    return [row[column] for row in sorted(rows, key=lambda row: float(row["n"]))]


def test_rewritten_files_keep_all_values_and_have_the_columns_of_the_table(place: IcebergPlace) -> None:
    target = a_target(place, columns=pa.schema([*HEADERS, *FORM.metadata_schema()]))
    put(target, 0, [{"n": 0, "h": None}, {"n": 1, "h": []}, {"n": 2, "h": [{"k": "x"}, None]}], HEADERS)
    with opened_table(place) as other, other.update_schema() as update:
        update.rename_column("h", "headers")
    more = pa.schema([("headers", pa.list_(pa.struct([("k", pa.string()), ("v", pa.int32())])))])
    assert target.evolve(more, rewrite=False) == ["headers[].v integer"]
    put(target, 3, [{"n": 3, "headers": [{"k": "y", "v": 1}]}], pa.schema([HEADERS.field("n"), *more]))
    assert target.compact() == (2, 1)
    assert stored_values(place, "headers") == [None, [], [{"k": "x", "v": None}, None], [{"k": "y", "v": 1}]]
    assert target.evolve(pa.schema([("n", pa.float64())]), rewrite=True) == ["n double"]
    put(target, 4, [{"n": 3.5}])
    assert stored_values(place, "n") == [0.0, 1.0, 2.0, 3.0, 3.5] and stored_values(place, "headers")[:2] == [None, []]
    assert status(place).columns[0] == ("headers", "array<struct<k: string, v: integer>>") and target.positions([0]) == {0: 5}


def test_types_that_readers_widen_need_no_rewrite(place: IcebergPlace) -> None:
    small = pa.schema([("i", pa.int32()), ("f", pa.float32()), ("d", pa.decimal128(5, 2))])
    target = a_target(place, columns=small)
    put(target, 0, [{"i": 1, "f": 0.5, "d": None}], small)
    wide = pa.schema([("i", pa.int64()), ("f", pa.float64()), ("d", pa.decimal128(9, 2))])
    assert target.evolve(wide, rewrite=False) == ["i long", "f double", "d decimal(9,2)"]
    put(target, 1, [{"i": 2**40, "f": 1e300, "d": None}], wide)
    with opened_table(place) as table:
        assert sorted(table.scan().to_arrow().column("i").to_pylist()) == [1, 2**40]


def test_a_type_that_does_not_fit_is_refused_with_advice(place: IcebergPlace) -> None:
    target = a_target(place)
    put(target, 0, [{"n": 2**60 + 1}])
    with pytest.raises(TableMismatch, match="has n long, not string: cast the column"):
        target.evolve(pa.schema([("n", pa.string())]), rewrite=True)
    with pytest.raises(TableMismatch, match=r"n long, not double.*must be rewritten"):
        target.evolve(pa.schema([("n", pa.float64())]), rewrite=False)
    with pytest.raises(TableMismatch, match="do not fit n long, not double"):
        target.evolve(pa.schema([("n", pa.float64())]), rewrite=True)
    assert numbers(place) == [2**60 + 1]


def test_columns_of_files_are_found_by_their_ids() -> None:
    def column(name: str, kind: Any, number: int, *, required: bool = False) -> Any:
        return pa.field(name, kind, not required, metadata={"PARQUET:field_id": str(number)})

    def a_map(*members: Any) -> Any:
        return column("m", pa.map_(column("key", pa.string(), 2, required=True), column("value", pa.struct(members), 3)), 1)

    there = [a_map(column("x", pa.int32(), 4)), column("old", pa.list_(column("element", pa.int32(), 6)), 5)]
    wanted = [a_map(column("x", pa.int64(), 4), column("y", pa.string(), 8)), column("new", pa.list_(column("element", pa.int64(), 6)), 5)]
    maps = pa.array([[("gone", None)], [("k", {"x": 1})], None, [], [("j", None)]], there[0].type)
    lists = pa.array([[0], [1, None], None, [], [2]], there[1].type)
    found = projected_members([maps.slice(1), lists.slice(1)], 4, there, wanted)
    assert found[0].to_pylist() == [[("k", {"x": 1, "y": None})], None, [], [("j", None)]]
    assert found[1].to_pylist() == [[1, None], None, [], [2]] and found[1].type.value_type == pa.int64()


# -- tables of others


def test_tables_that_were_not_made_from_the_topic_are_refused(place: IcebergPlace, tmp_path: Path) -> None:
    target = a_target(place)
    with pytest.raises(TableConflict, match="holds topic orders, not bills"):
        target.form(TableOrigin("bills", "id"))
    with pytest.raises(TableConflict, match="deleted and recreated"):
        target.form(TableOrigin("orders", "other"))
    with pytest.raises(TableConflict, match="holds an Iceberg table"):
        DeltaTarget(tmp_path / "t").form(ORIGIN)
    DeltaTarget(tmp_path / "d").begin(ORIGIN, FORM, COLUMNS)
    with pytest.raises(TableConflict, match="holds a Delta table"):
        IcebergTarget(embedded(tmp_path / "d")).form(ORIGIN)
    with opened_table(place) as other, other.update_spec() as update:
        update.add_identity("n")
    with pytest.raises(TableConflict, match=r"partitioning of the table .* was changed"):
        put(target, 0, [{"n": 0}])


# -- maintenance and readers


@pytest.fixture
def by_date(tmp_path: Path) -> IcebergPlace:
    """Rows of two days and three commits."""
    form = TableFormat(value="json", key="text", columns=("key", "timestamp"), by_date=True)
    columns = pa.schema([("n", pa.int64()), *form.metadata_schema()])
    target = a_target(embedded(tmp_path / "by date"), form, columns)
    for number in range(3):
        seconds = pa.array([0, 86_400], pa.int64())
        times = pa.compute.multiply(seconds, 1_000_000).cast(pa.timestamp("us", "UTC"))
        rows = {"n": [number, number + 10], "_key": ["a", "b"], "_timestamp": times, "record_date": times.cast(pa.date32())}
        files = target.files()
        files.write(pa.table(rows))
        target.commit(files.finish(), {0: 2 * number} if number else {}, {0: 2 * number + 2})
    target.close()
    return embedded(tmp_path / "by date")


EXPECTED = [0, 1, 2, 10, 11, 12]


def test_the_commands_describe_compact_and_vacuum_a_table(by_date: IcebergPlace) -> None:
    assert by_date.directory is not None
    directory = str(by_date.directory)
    done = CliRunner().invoke(main, ["table", "compact", directory, "--vacuum-hours", "0", "-o", "json"])
    found = json.loads(done.output)
    assert (found["merged_files"], found["new_files"]) == (6, 2) and found["vacuumed_files"] > 6
    assert len(list(by_date.directory.rglob("*.parquet"))) == 2 and numbers(by_date) == EXPECTED
    done = CliRunner().invoke(main, ["table", "status", directory, "--offline", "-o", "json"])
    found = json.loads(done.output)
    assert (found["format"], found["rows"], found["files"], found["offsets"]) == ("iceberg", 6, 2, {"0": 6})
    done = CliRunner().invoke(main, ["table", "compact", directory])
    assert done.output == "0 files were merged into 0\n"


def test_pyiceberg_reads_a_table_by_its_directory(by_date: IcebergPlace) -> None:
    table = StaticTable.from_metadata(str(by_date.directory))
    assert sorted(table.scan(row_filter="record_date = '1970-01-02'").to_arrow().column("n").to_pylist()) == EXPECTED[3:]


@pytest.mark.filterwarnings("ignore:Iceberg scan planning")
def test_polars_reads_a_table(by_date: IcebergPlace) -> None:
    polars = pytest.importorskip("polars")
    with opened_table(by_date) as table:
        rows = polars.scan_iceberg(table).filter(polars.col("record_date") == polars.date(1970, 1, 1)).collect()
    assert sorted(rows["n"].to_list()) == EXPECTED[:3]


def test_duckdb_reads_a_table_by_its_extension(by_date: IcebergPlace) -> None:
    duckdb = pytest.importorskip("duckdb")
    database = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    try:
        database.sql("LOAD iceberg")
    except duckdb.Error as error:
        pytest.skip(f"DuckDB's extension iceberg is not installed, and comes from a server of its own: {str(error).splitlines()[0]}")
    rows = database.sql(f"SELECT n FROM iceberg_scan('{by_date.directory}') ORDER BY n").fetchall()
    assert [n for (n,) in rows] == EXPECTED


def test_duckdb_reads_a_table_by_arrow(by_date: IcebergPlace) -> None:
    duckdb = pytest.importorskip("duckdb")
    with opened_table(by_date) as table:
        orders = table.scan().to_arrow()
    assert [n for (n,) in duckdb.sql("SELECT n FROM orders ORDER BY n").fetchall()] == EXPECTED and orders.num_rows == 6


# -- catalogs


def test_a_catalog_of_the_configuration_is_used_by_its_name(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.sqlite"
    target = a_target(in_catalog("lake", "shop.orders", {"type": "sql", "uri": uri, "warehouse": f"file://{tmp_path}/lake"}))
    put(target, 0, [{"n": 0}])
    assert target._table.location() == f"file://{tmp_path}/lake/shop/orders" and list((tmp_path / "lake").rglob("*.parquet"))
    (tmp_path / ".pyiceberg.yaml").write_text(f"catalog:\n  lake:\n    type: sql\n    uri: {uri}\n")
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYICEBERG_HOME": str(tmp_path)}
    words = ["table", "status", "shop.orders", "--catalog", "lake", "--offline", "-o", "json"]
    done = subprocess.run([sys.executable, "-m", "ottla", *words], capture_output=True, text=True, env=environment, timeout=60)
    assert json.loads(done.stdout)["offsets"] == {"0": 1}, done.stderr


TABLE = ["table", "sync", "orders", "--once", "--to"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([*TABLE, "s3://lake/orders", "--format", "iceberg"], "needs a catalog"),
        ([*TABLE, "t", "--catalog", "lake"], "are for --format iceberg"),
        ([*TABLE, "t", "--format", "iceberg", "--catalog-option", "uri=x"], "--catalog-option needs --catalog"),
        ([*TABLE, "t", "--format", "iceberg", "--storage-option", "region=x"], "--storage-option is not for Iceberg"),
        ([*TABLE, "a/b", "--format", "iceberg", "--catalog", "lake"], "is named NAMESPACE.TABLE"),
        ([*TABLE, "a.b", "--format", "iceberg", "--catalog", "nowhere"], "is not configured"),
        ([*TABLE, "a#b", "--format", "iceberg"], "has #, ? or %"),
        (["table", "status", "a.b"], "needs --catalog NAME"),
    ],
)
def test_options_that_do_not_fit_are_refused_with_what_to_do(words: list[str], told: str) -> None:
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2 and told in " ".join(done.output.split()), done.output


def test_a_missing_pyiceberg_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ottla.lake.table.iceberg_catalog")
    for name in [one for one in sys.modules if one.partition(".")[0] == "pyiceberg"]:
        monkeypatch.setitem(sys.modules, name, None)
    done = CliRunner().invoke(main, [*TABLE, "t", "--format", "iceberg"])
    assert done.exit_code == 1 and "pip install 'ottla[iceberg]'" in done.output


def test_secrets_of_catalogs_are_refused_as_text_and_in_no_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for option in ("token=hunter22", "credential=me:hunter22", "s3.secret-access-key=hunter22", "uri=postgresql://me:hunter22@127.0.0.1/x"):
        with pytest.raises(CatalogOptionError, match="=env:VARIABLE") as refused:
            in_catalog("lake", "a.b", dict([option.split("=", 1)]))
        assert "hunter22" not in str(refused.value)
    with pytest.raises(CatalogOptionError, match="no variable NO_SUCH"):
        in_catalog("lake", "a.b", {"uri": "x", "token": "env:NO_SUCH"}).open()
    monkeypatch.setenv("MY_URI", f"sqlite:///{tmp_path}/none/hunter22")
    monkeypatch.setenv("MY_TOKEN", "hunter22")
    words = ["--catalog", "lake", "--catalog-option", "uri=env:MY_URI", "--catalog-option", "token=env:MY_TOKEN"]
    done = CliRunner().invoke(main, ["table", "status", "a.b", "--offline", *words, "--catalog-option", "type=sql"])
    assert done.exit_code == 1 and "in catalog lake: unable to open database file" in done.output and "hunter22" not in done.output
