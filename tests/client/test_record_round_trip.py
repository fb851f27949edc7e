"""`produce` accepts what `consume -o json` and `-o csv` print, byte for byte; Parquet files keep records too."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cli.common.record_csv import csv_lines, fields, joined
from ottla.cli.common.record_format import FieldFormats, compiled
from ottla.cli.consume.columns import ALL, columns, json_lines, text_parts
from ottla.cli.consume.output import json_coloured
from ottla.cli.produce.input import CountedInput, InputFormat, InputRecord
from ottla.cli.produce.sending import chunks
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.values.value_formats import VALUE_FORMATS

BYTES = (
    st.none()
    | st.binary(max_size=12)
    | st.text('",\r\nab\\{}', max_size=6).map(str.encode)
    | st.sampled_from([b"", b"null", b'{"base64":"AA=="}'])
)
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=5)
RECORDS = st.builds(
    ConsumerRecord,
    topic=st.just("orders"), partition=st.integers(0, 5), offset=st.integers(0, 2**60), timestamp=st.integers(-1, 2**50),
    timestamp_type=st.integers(0, 1), key=BYTES, value=BYTES, headers=st.lists(st.tuples(NAMES, BYTES), max_size=3).map(tuple),
)  # fmt: skip


def a_record(value: bytes | None = b"v", key: bytes | None = b"k", **changes: Any) -> ConsumerRecord:
    settings: dict[str, Any] = {
        "topic": "orders", "partition": 3, "offset": 100, "timestamp": 1_700_000_000_123, "timestamp_type": 0, "key": key, "value": value,
        "headers": (("a", b"1"), ("n", None)),
    }  # fmt: skip
    return ConsumerRecord(**(settings | changes))


def read(data: bytes, reading: InputFormat) -> list[InputRecord]:
    def complain(message: str) -> None:
        raise AssertionError(message)

    return [record for chunk in chunks(CountedInput([("-", io.BytesIO(data))]), reading, complain) for record in chunk.records]


def sent(record: ConsumerRecord) -> InputRecord:
    return record.value, record.key, record.headers, record.partition, None if record.timestamp < 0 else record.timestamp


@given(st.lists(RECORDS, max_size=4))
def test_json_lines_round_trip(records: list[ConsumerRecord]) -> None:
    printed = json_lines(columns(ALL, FieldFormats()))(records)
    assert printed.count(b"\n") == len(records)
    assert read(printed, InputFormat("json")) == [sent(record) for record in records]


@given(st.lists(RECORDS, max_size=4))
def test_csv_round_trips(records: list[ConsumerRecord]) -> None:
    printed = csv_lines(columns(ALL, FieldFormats()), heading=True)(records)
    assert read(printed, InputFormat("csv")) == [sent(record) for record in records]


@given(st.lists(st.lists(st.binary(min_size=1, max_size=6), min_size=2, max_size=3), min_size=1, max_size=3))
def test_other_programs_read_our_csv(rows: list[list[bytes]]) -> None:
    texts = [[cell.decode("latin-1").replace("\r", "") or "x" for cell in row] for row in rows]
    from ottla.cli.common.record_csv import cell

    printed = "\n".join(",".join(cell(text.encode("latin-1")).decode("latin-1") for text in row) for row in texts)
    assert list(csv.reader(io.StringIO(printed, newline=""))) == texts


def test_a_json_line_holds_the_complete_record() -> None:
    line = json_lines(columns(ALL, FieldFormats()))([a_record(b"\xff")])
    assert line == (
        b'{"topic":"orders","partition":3,"offset":100,"timestamp":1700000000123,"key":"k","value":{"base64":"/w=="},'
        b'"headers":[["a","1"],["n",null]]}\n'
    )


def test_columns_can_be_chosen_for_json_csv_and_text() -> None:
    record = a_record(b'{"a": {"b": [1, 2]}, "c": "x,y"}', b'{"id": 5}')
    chosen = columns(["time", "timestamp_type", "key.id", ".a.b[*]", ".c", "header.a", ".none"], FieldFormats())
    assert json.loads(json_lines(chosen)([record])) == {
        "time": "2023-11-14T22:13:20.123Z", "timestamp_type": "create", "key.id": 5, ".a.b[*]": [1, 2], ".c": "x,y", "header.a": "1",
        ".none": None,
    }  # fmt: skip
    assert csv_lines(chosen, heading=True)([record]) == (
        b'time,timestamp_type,key.id,.a.b[*],.c,header.a,.none\n2023-11-14T22:13:20.123Z,create,5,"[1,2]","x,y",1,\n'
    )
    assert compiled(text_parts(chosen, b";", coloured=False))([record]) == b"2023-11-14T22:13:20.123Z\tcreate\t5\t[1,2]\tx,y\t1\t;"


def test_a_header_line_is_printed_once_or_not_at_all_if_disabled() -> None:
    chosen = columns(["offset"], FieldFormats())
    render = csv_lines(chosen, heading=True)
    assert render([a_record()]) + render([a_record()]) == b"offset\n100\n100\n"
    assert csv_lines(chosen, heading=False)([a_record()]) == b"100\n"


@pytest.mark.parametrize("name", ["ofset", "header.", "header", ".a.", "key.", ""])
def test_a_missing_column_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="unknown column"):
        columns([name], FieldFormats())


def test_a_duplicate_column_is_refused() -> None:
    with pytest.raises(ValueError, match="has column key twice"):
        columns(["key", "value", "key"], FieldFormats())


def test_formatted_values_are_json_values() -> None:
    seen = FieldFormats(key=VALUE_FORMATS["int"], value=VALUE_FORMATS["json"])
    line = json_lines(columns(["key", "value"], seen))([a_record(b'{ "a": 1.10 }', (7).to_bytes(8, "big")), a_record(None, None)])
    assert line == b'{"key":7,"value":{"a":1.10}}\n{"key":null,"value":null}\n'
    assert [record[:2] for record in read(line, InputFormat("json", key=VALUE_FORMATS["int"], value=VALUE_FORMATS["json"]))] == [
        (b'{"a":1.10}', (7).to_bytes(8, "big")),
        (None, None),
    ]


def test_misplaced_quotes_are_reported() -> None:
    assert fields(b'a,"b ""c""",,""') == [b"a", b'b "c"', None, b""]
    for line in (b'a"b', b'"a"b', b'"a""'):
        with pytest.raises(ValueError, match="quote"):
            fields(line)
    with pytest.raises(ValueError, match="line 2: unclosed quote"):
        list(joined([(1, b"a"), (2, b'"b'), (3, b"c")], 100))


def test_a_parquet_file_has_typed_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    from ottla.cli.consume import parquet_output

    monkeypatch.setattr(parquet_output, "GROUP_ROWS", 2)
    with (tmp_path / "a.parquet").open("wb") as out:
        file = parquet_output.ParquetFile(
            out, columns([*ALL, "timestamp_type", ".a"], FieldFormats(key=VALUE_FORMATS["int"])), numbers={"key": "int64"}
        )
        file.write([a_record(b'{"a": [1]}', (5).to_bytes(8, "big")), a_record(None, None, headers=())])
        file.write([a_record(b"\xff", None, timestamp_type=1)])
        file.close()
    found = parquet.ParquetFile(tmp_path / "a.parquet")
    assert found.num_row_groups == 2
    table = found.read()
    assert [str(field.type) for field in table.schema][:6] == [
        "dictionary<values=string, indices=int32, ordered=0>", "int32", "int64", "timestamp[ms, tz=UTC]", "int64", "binary",
    ]  # fmt: skip
    assert table["key"].to_pylist() == [5, None, None]
    assert table["value"].to_pylist() == [b'{"a": [1]}', None, b"\xff"]
    assert table["headers"].to_pylist()[:2] == [[{"name": "a", "value": b"1"}, {"name": "n", "value": None}], []]
    assert table[".a"].to_pylist() == ["[1]", None, None]
    assert table["timestamp_type"].to_pylist() == ["create", "create", "append"]


def test_an_empty_parquet_file_can_be_read(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    from ottla.cli.consume.parquet_output import ParquetFile

    with (tmp_path / "a.parquet").open("wb") as out:
        ParquetFile(out, columns(ALL, FieldFormats()), numbers={}).close()
    assert parquet.read_table(tmp_path / "a.parquet").num_rows == 0


def test_colours_do_not_change_the_text() -> None:
    line = b'{"a":"x \\" : y","n":-1.5e3,"t":true,"z":null,"l":[1,"2"]}\n'
    coloured = json_coloured(line)
    assert b'\x1b[36m"a"\x1b[0m:\x1b[32m"x \\" : y"\x1b[0m' in coloured
    import re

    assert re.sub(rb"\x1b\[\d*m", b"", coloured) == line
