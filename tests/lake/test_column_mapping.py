"""Column mapping: which columns of a row become which parts of a record."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ottla.lake.load.column_mapping import TURN_ROWS, ColumnMapping, Template, choose_partitions, map_columns, parse_template
from ottla.lake.load.inputs import CannotLoad, inputs
from ottla.lake.load.preview import preview
from ottla.lake.load.reader import ReadOptions
from ottla.records import partition_for_key

T0 = 1_790_000_000_000


def column(name: str) -> Template:
    return Template(((name,),))


def made(table: dict[str, Any], **shape: Any) -> list[dict[str, Any]]:
    found = map_columns(ColumnMapping(**shape), pa.RecordBatch.from_pydict(table), None, 0, "dir/a.csv")
    assert not found.bad
    return [dict(row) for row in found.batch.to_pylist()]


def test_a_row_is_an_object_even_if_all_columns_are_null() -> None:
    assert [row["value"] for row in made({"a": [1, None], "b": ["x", None]})] == ['{"a":1,"b":"x"}', '{"a":null,"b":null}']
    assert made({"a": [1], "b": ["x"], "c": [2]}, columns=("c", "a"))[0]["value"] == '{"c":2,"a":1}'
    assert made({"a": [1], "b": ["x"]}, without=("a",))[0]["value"] == '{"b":"x"}'


def test_a_single_value_column_is_used_unchanged_and_null_is_a_tombstone() -> None:
    assert [row["value"] for row in made({"a": ["x", None, ""]}, value="a")] == ["x", None, ""]
    assert [row["value"] for row in made({"a": [b"\xff"]}, value="a")] == [b"\xff"]
    assert [row["value"] for row in made({"a": [[1, 2]]}, value="a")] == ["[1,2]"]


def test_values_without_a_json_type_have_the_usual_text_form() -> None:
    table = {
        "at": [datetime(2026, 1, 31, 12)], "on": [date(2026, 1, 31)], "money": [Decimal("1.50")], "no": [float("nan")],
        "in": [{"x": [1, None]}], "bytes": [b"\x00\xff"],
    }  # fmt: skip
    assert made(table, base64=("bytes",))[0]["value"] == (
        '{"at":"2026-01-31T12:00:00.000000","on":"2026-01-31","money":"1.50","no":null,"in":{"x":[1,null]},"bytes":"AP8="}'
    )
    with pytest.raises(CannotLoad, match=r"column bytes: .*--base64 COLUMN"):
        made({"bytes": [b"\x00\xff"]})


def test_keys_are_columns_or_templates_and_null_with_a_null_column() -> None:
    table = {"c": ["AT", "SI", None], "n": [1, None, 3]}
    assert [row["key"] for row in made(table, key=column("n"))] == ["1", None, "3"]
    assert [row["key"] for row in made(table, key=parse_template("{c}-{n}"))] == [b"AT-1", None, None]
    assert [row["key"] for row in made(table, key=parse_template("{_file}:{_row}{{}}"))] == [b"a.csv:0{}", b"a.csv:1{}", b"a.csv:2{}"]
    assert made(table, key=parse_template("same"))[0]["key"] == "same"
    with pytest.raises(CannotLoad, match="unbalanced brace at 4"):
        parse_template("{a}}{b")


def test_headers_can_differ_by_row() -> None:
    rows = made({"c": ["AT", None]}, headers=(("src", parse_template("{_file}")), ("c", parse_template("{c}")), ("none", None)))
    assert [[(pair["key"], pair["value"]) for pair in row["headers"]] for row in rows] == [
        [("src", b"a.csv"), ("c", b"AT"), ("none", None)],
        [("src", b"a.csv"), ("c", None), ("none", None)],
    ]


def test_headers_can_be_a_column_of_lists_or_maps() -> None:
    lists = pa.array([[("a", b"1"), ("b", None)], None], pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])))
    maps = pa.array([[("a", "1")], []], pa.map_(pa.string(), pa.string()))
    batch = pa.RecordBatch.from_arrays([lists, maps, pa.array(["x", "y"])], ["l", "m", "v"])
    found = {name: map_columns(ColumnMapping(value="v", headers_column=name), batch, None, 0, "a").batch.column("headers") for name in "lm"}
    assert found["l"].to_pylist() == [[{"key": "a", "value": b"1"}, {"key": "b", "value": None}], None]
    assert found["m"].to_pylist() == [[{"key": "a", "value": b"1"}], []]
    with pytest.raises(CannotLoad, match="a headers column holds lists of"):
        map_columns(ColumnMapping(value="v", headers_column="v"), batch, None, 0, "a")


@pytest.mark.parametrize(
    "times",
    [
        [T0, None],
        pa.array([T0 * 1000, None], pa.timestamp("us")),
        pa.array([T0, None], pa.timestamp("ms", "Europe/Vienna")),
        [str(T0), None],
        ["2026-09-21T14:13:20", None],
        ["2026-09-21T16:13:20+02:00", None],
        ["2026-09-21 14:13:20.000", ""],
    ],
)
def test_timestamps_are_numbers_timestamps_or_text(times: Any) -> None:
    first, second = (row["timestamp"] for row in made({"at": times}, timestamp="at"))
    assert int(first.timestamp() * 1000) == T0 and second is None


def test_rows_that_make_no_record_are_reported() -> None:
    table = {"at": ["2026-01-31", "yesterday", None], "p": ["0", "1", "x"], "v": ["a", "b", "c"]}
    found = map_columns(ColumnMapping(timestamp="at", partition="p", columns=("v",)), pa.RecordBatch.from_pydict(table), None, 10, "a")
    assert [(one.at, one.why) for one in found.bad] == [
        (1, "column at: 'yesterday' is not a time such as 2026-01-31T12:00:00Z"),
        (2, "column p: 'x' is not a partition number"),
    ]
    assert found.rows.to_pylist() == [10] and found.batch.num_rows == 1
    large = map_columns(ColumnMapping(value="v", bytes_max=2000), pa.RecordBatch.from_pydict({"v": ["x" * 3000, "y"]}), None, 0, "a")
    assert [one.at for one in large.bad] == [0] and "3,000 bytes" in large.bad[0].why


def test_a_missing_column_is_an_error_with_the_existing_ones() -> None:
    with pytest.raises(CannotLoad, match=r"a\.csv: no column 'idd'; did you mean id\?; the columns are id, name"):
        ColumnMapping(key=column("idd")).check({"id": "number", "name": "text"}, "a.csv")


# -- which partition


def test_the_partition_column_overrides_the_key_and_the_key_round_robin() -> None:
    batch = pa.RecordBatch.from_pydict({"k": ["a", "a", None, None], "p": pa.array([2, None, 0, None], pa.int64())})
    found = map_columns(ColumnMapping(key=column("k"), partition="p"), batch, None, 5 * TURN_ROWS - 1, "a")
    assert choose_partitions(found, 3).to_pylist() == [2, partition_for_key(b"a", 3), 0, 5 % 3]
    with pytest.raises(CannotLoad, match=r"row 4999 names partition 2; the topic has 2 partitions"):
        choose_partitions(found, 2)


def test_round_robin_depends_only_on_row_numbers() -> None:
    batch = pa.RecordBatch.from_pydict({"v": ["x"] * 5 * TURN_ROWS})
    whole = choose_partitions(map_columns(ColumnMapping(), batch, None, 0, "a"), 3).to_pylist()
    assert whole == [row // TURN_ROWS % 3 for row in range(5 * TURN_ROWS)]
    cut = map_columns(ColumnMapping(), batch.slice(1234), None, 1234, "a")
    assert choose_partitions(cut, 3).to_pylist() == whole[1234:]


# -- what it would look like


def test_a_preview_shows_the_first_records_as_they_are_sent(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,v,at\n1,x,2026-01-31T00:00:00Z\n2,,\n3,y,\n")
    (tmp_path / "b.csv").write_text("id,v,at\n4,z,\n")
    files = inputs([str(tmp_path)], None)
    shape = ColumnMapping(key=column("id"), columns=("v",), headers=(("n", parse_template("{_row}")),), timestamp="at", partition=7)
    found = list(preview(files, shape, ReadOptions(), 10))
    assert [(one.key, one.value, one.headers, one.partition, one.timestamp_ms) for one in found] == [
        (b"1", b'{"v":"x"}', (("n", b"0"),), 7, 1_769_817_600_000),
        (b"2", b'{"v":null}', (("n", b"1"),), 7, None),
        (b"3", b'{"v":"y"}', (("n", b"2"),), 7, None),
        (b"4", b'{"v":"z"}', (("n", b"0"),), 7, None),
    ]
    assert len(list(preview(files, shape, ReadOptions(), 2))) == 2
    (tmp_path / "a.csv").write_text("id,v,at\n1,x,\n2\n")
    with pytest.raises(CannotLoad, match=r"a\.csv, line 3: 1 fields, and there are 3 columns"):
        list(preview(inputs([str(tmp_path)], None), shape, ReadOptions(), 10))
