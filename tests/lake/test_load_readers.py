"""Input files as rows: each format, its types, and lines that are not rows."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from ottla.lake.load import line_files
from ottla.lake.load.inputs import CannotLoad, inputs
from ottla.lake.load.reader import WHOLE, ReadOptions
from ottla.lake.load.readers import open_reader


def read(path: Path, form: str | None = None, **how: Any) -> tuple[list[dict[str, Any]], list[tuple[int, int | None, str]]]:
    """The rows of a file, and its bad lines: index among the rows, line number, reason."""
    (source,) = inputs([str(path)], form)
    rows: list[dict[str, Any]] = []
    bad: list[tuple[int, int | None, str]] = []
    with open_reader(source, ReadOptions(**how)) as reader:
        for portion in reader.portions(0):
            bad += [(len(rows) + one.at, one.line, one.why) for one in portion.bad]
            rows += portion.batch.to_pylist()
    return rows, bad


def written(tmp_path: Path, name: str, data: bytes) -> Path:
    path = tmp_path / name
    path.write_bytes(data)
    return path


# -- csv


def test_csv_columns_have_inferred_types(tmp_path: Path) -> None:
    path = written(
        tmp_path, "a.csv", b'id,amount,ok,on,name\r\n1,2.5,true,2026-01-31,"Ann, B."\r\n2,,false,,\r\n3,1,true,2026-02-01,""\r\n'
    )
    rows, bad = read(path)
    assert [(row["id"], row["amount"], row["ok"], str(row["on"]), row["name"]) for row in rows] == [
        (1, 2.5, True, "2026-01-31", "Ann, B."),
        (2, None, False, "None", None),
        (3, 1.0, True, "2026-02-01", ""),
    ]
    assert not bad


def test_numbers_that_would_lose_digits_stay_text(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", b"zip,account,n\n00501,12345678901234567890123,1\n10001,5,0\n")
    assert read(path)[0][0] == {"zip": "00501", "account": "12345678901234567890123", "n": 1}


def test_types_can_be_specified(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", b"a,b,c\n1,2,3\n")
    assert read(path, types={"a": "string", "b": "double"})[0] == [{"a": "1", "b": 2.0, "c": 3}]
    assert read(path, all_text=True)[0] == [{"a": "1", "b": "2", "c": "3"}]
    with pytest.raises(CannotLoad, match="no column 'aa'; did you mean a"):
        read(path, types={"aa": "string"})
    with pytest.raises(CannotLoad, match="no type 'integer'"):
        read(path, types={"a": "integer"})


def test_bad_csv_lines_are_named_and_the_others_read(tmp_path: Path) -> None:
    lines = [f"{n},x" for n in range(100)]
    lines[40], lines[41], lines[99] = "4O,x", "41", '99,"two\nlines",more'
    path = written(tmp_path, "a.csv", "\n".join(["id,v", *lines]).encode())
    rows, bad = read(path, types={"id": "int64"})
    assert [row["id"] for row in rows] == [n for n in range(99) if n not in (40, 41)]
    assert bad == [
        (40, 42, "column id: '4O' is not int64"),
        (40, 43, "1 fields, and there are 2 columns"),
        (97, 101, "3 fields, and there are 2 columns"),
    ]


def test_quoted_fields_can_contain_line_ends_and_blocks_end_after_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_files, "PORTION_BYTES", 64)
    rows = [{"id": n, "v": f'a "{n}"\n\n, b'} for n in range(50)]
    text = "id,v\n" + "".join('{},"{}"\n'.format(row["id"], str(row["v"]).replace('"', '""')) for row in rows)
    assert read(written(tmp_path, "a.csv", text.encode())) == (rows, [])


def test_an_unclosed_quote_is_reported(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", b'a,b\n1,2\n3,"4\n5,6\n')
    with pytest.raises(CannotLoad, match="a quote is opened and not closed, in line 3"):
        read(path)
    assert read(path, quote=None)[0][1] == {"a": 3, "b": '"4'}


def test_delimiters_column_names_and_null_texts_can_be_set(tmp_path: Path) -> None:
    assert read(written(tmp_path, "a.tsv", b"a\tb\n1\tx,y\n"))[0] == [{"a": 1, "b": "x,y"}]
    path = written(tmp_path, "b.csv", b"1;NA\n2;3\n")
    assert read(path, names=("p", "q"), delimiter=";", nulls=("NA",))[0] == [{"p": 1, "q": None}, {"p": 2, "q": 3}]


@pytest.mark.parametrize(("data", "why"), [(b"", "no line that names the columns"), (b"a,a\n1,2\n", "several of its columns are called a")])
def test_csv_without_a_header_line_is_refused(tmp_path: Path, data: bytes, why: str) -> None:
    with pytest.raises(CannotLoad, match=why):
        read(written(tmp_path, "a.csv", data))


# -- JSON lines, text


def test_json_lines_are_kept_as_written(tmp_path: Path) -> None:
    lines = [b'{"id": 1.50, "big": 123456789012345678901234567890}', b'{ "other":[1,2]}', b"7"]
    rows, bad = read(written(tmp_path, "a.jsonl", b"\n\n".join(lines) + b"\r\n"))
    assert [row[WHOLE] for row in rows] == lines and not bad


def test_json_fields_are_extracted_as_text(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", b'{"k":"\\u00e9","n":1.50}\n{"n":null}\n{"k":{"a":[1]},"n":"x"}\n')
    rows, _ = read(path, fields=("k", "n"))
    assert [(row["k"], row["n"]) for row in rows] == [("é".encode(), b"1.50"), (None, None), (b'{"a":[1]}', b"x")]
    assert [row[WHOLE] for row in read(path, fields=("k",), chosen=("n", "m"))[0]] == [b'{"n":1.50}', b'{"n":null}', b'{"n":"x"}']
    assert read(path, without=("k",))[0][2][WHOLE] == b'{"n":"x"}'
    texts = read(written(tmp_path, "b.jsonl", b'{"k":"\\u00e9\\n","n":1}\n{"k":null}\n{}\n'), fields=("k",))[0]
    assert [row["k"] for row in texts] == ["é\n".encode(), None, None]
    with pytest.raises(CannotLoad, match="no record has a field 'kk'; did you mean k"):
        read(path, fields=("kk",))


def test_invalid_json_lines_are_named(tmp_path: Path) -> None:
    rows, bad = read(written(tmp_path, "a.json", b'{"a":1}\n{"a":\n\n{"a":"\xff"}\n{"a":1} {"a":2}\n{"a":2}'))
    assert [row[WHOLE] for row in rows] == [b'{"a":1}', b'{"a":2}']
    assert [(at, line) for at, line, _ in bad] == [(1, 2), (1, 4), (1, 5)]


@pytest.mark.parametrize(("data", "how"), [(b'[\n{"a":1}\n]', r"jq -c '\.\[\]'"), (b'{\n"a":1\n}', r"jq -c \.")])
def test_multi_line_json_is_refused_with_advice(tmp_path: Path, data: bytes, how: str) -> None:
    with pytest.raises(CannotLoad, match=how):
        read(written(tmp_path, "a.json", data))


def test_each_line_of_text_is_a_row_whatever_its_bytes(tmp_path: Path) -> None:
    assert [row["line"] for row in read(written(tmp_path, "a.log", b"a\r\n\n\xff\nlast"))[0]] == [b"a", b"", b"\xff", b"last"]


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_text_can_be_compressed(tmp_path: Path, suffix: str) -> None:
    data = b"".join(b"line %d\n" % n for n in range(1000))
    packed = gzip.compress(data) if suffix == "gz" else bytes(pa.Codec("zstd").compress(data))
    path = written(tmp_path, f"a.txt.{suffix}", packed)
    assert len(read(path)[0]) == 1000
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(CannotLoad, match="cannot be unpacked"):
        read(path)


# -- parquet, Arrow


def test_parquet_and_every_arrow_format_keep_their_types(tmp_path: Path) -> None:
    table = pa.table({"id": range(10), "tags": [[str(n)] for n in range(10)]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    pyarrow.feather.write_feather(table, str(tmp_path / "b.feather"))
    for name, make in (("c.arrow", pa.ipc.new_file), ("d.arrows", pa.ipc.new_stream)):
        with make(str(tmp_path / name), table.schema) as writer:
            writer.write_table(table, max_chunksize=4)
    for name in ("a.parquet", "b.feather", "c.arrow", "d.arrows"):
        assert read(tmp_path / name) == (table.to_pylist(), []), name
    (tmp_path / "e.parquet").write_bytes(b"no parquet at all")
    with pytest.raises(CannotLoad, match=r"e\.parquet: "):
        read(tmp_path / "e.parquet")


def test_row_groups_before_the_first_requested_row_are_not_read(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pa.table({"id": range(10)}), tmp_path / "a.parquet", row_group_size=3)
    (source,) = inputs([str(tmp_path / "a.parquet")], None)
    with open_reader(source, ReadOptions()) as reader:
        rows = [row["id"] for portion in reader.portions(7) for row in portion.batch.to_pylist()]
    assert (reader.skipped, rows) == (6, [6, 7, 8, 9])


def test_partition_directories_add_a_column(tmp_path: Path) -> None:
    path = tmp_path / "year=2026" / "city=St.%20Veit" / "zone=__HIVE_DEFAULT_PARTITION__" / "code=007" / "a.csv"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"id,code\n1,2\n")
    assert read(path)[0] == [{"id": 1, "code": 2, "year": 2026, "city": "St. Veit", "zone": None}]
    path.with_name("b.parquet").write_bytes(b"")
    pyarrow.parquet.write_table(pa.table({"id": [1]}), path.with_name("b.parquet"))
    (source,) = inputs([str(path.with_name("b.parquet"))], None)
    with open_reader(source, ReadOptions()) as reader:
        assert reader.columns == {"id": "number", "year": "number", "city": "text", "zone": "", "code": "text"}


# -- which files


def test_overlapping_inputs_are_each_loaded_once(tmp_path: Path) -> None:
    for name in ("b.csv", "a.json.gz", "_SUCCESS", ".hidden.csv", "notes.md", "sub/c.parquet", "_tmp/d.csv"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    found = inputs([str(tmp_path), str(tmp_path / "*.csv"), str(tmp_path / "b.csv")], None)
    assert [(Path(one.name).name, one.format, one.codec) for one in found] == [
        ("a.json.gz", "json", "gzip"),
        ("b.csv", "csv", None),
        ("c.parquet", "parquet", None),
    ]
    assert [Path(one.name).name for one in inputs([str(tmp_path)], "csv")] == ["b.csv", "notes.md"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("b.cvs", r"no such file; did you mean b\.csv"),
        ("*.txt", "no file matches"),
        ("-", "standard input has no name"),
        ("notes.md", "does not tell its format: add --format"),
        ("empty", "no file in it ends in"),
        ("delta", "is a Delta table"),
        ("p.parquet.gz", "compressed inside"),
    ],
)
def test_unloadable_input_is_refused_before_loading(tmp_path: Path, name: str, why: str) -> None:
    for path in ("b.csv", "notes.md", "p.parquet.gz"):
        (tmp_path / path).touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "delta" / "_delta_log").mkdir(parents=True)
    with pytest.raises(CannotLoad, match=why):
        inputs([name if name == "-" else str(tmp_path / name)], None)
