"""Conversion of input to records: lines, keys, JSON, CSV, and errors of bad lines."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cli.common.record_csv import joined
from ottla.cli.produce.input import BadLine, Chunk, CountedInput, InputFormat, InputRecord, headers_from_json, split, whole_files
from ottla.cli.produce.sending import chunks
from ottla.client.values.value_formats import VALUE_FORMATS


class ReportedError(Exception):
    """The reported error."""


def refuse(message: str) -> None:
    raise ReportedError(message)


def read(data: bytes, complain: Any = refuse, **settings: Any) -> list[Chunk]:
    return list(chunks(CountedInput([("-", io.BytesIO(data))]), InputFormat(**settings), complain))


def records(data: bytes, **settings: Any) -> list[InputRecord]:
    return [record for chunk in read(data, **settings) for record in chunk.records]


def pairs(data: bytes, **settings: Any) -> list[tuple[bytes | None, bytes | None]]:
    return [(key, value) for value, key, *_ in records(data, **settings)]


@pytest.mark.parametrize(
    ("data", "settings", "expected"),
    [
        (b"a\nb\n", {}, [(None, b"a"), (None, b"b")]),
        (b"a\n\nb", {}, [(None, b"a"), (None, b""), (None, b"b")]),
        (b"", {}, []),
        (b"k:v\nbare\n:e\nx:y:z\n", {"key_delimiter": b":"}, [(b"k", b"v"), (None, b"bare"), (b"", b"e"), (b"x", b"y:z")]),
        (b"k:\n:v\n", {"key_delimiter": b":", "null": b""}, [(b"k", None), (None, b"v")]),
        (b"k:NULL\nNULL:v\n", {"key_delimiter": b":", "null": b"NULL"}, [(b"k", None), (None, b"v")]),
        (b"a\0b\0", {"delimiter": b"\0"}, [(None, b"a"), (None, b"b")]),
        (b"a--b--c", {"delimiter": b"--"}, [(None, b"a"), (None, b"b"), (None, b"c")]),
        (b"a\r\nb", {}, [(None, b"a\r"), (None, b"b")]),
        (b"00ff\n", {"value": VALUE_FORMATS["hex"]}, [(None, b"\x00\xff")]),
        (b"5:6\n", {"key_delimiter": b":", "key": VALUE_FORMATS["int8"], "value": VALUE_FORMATS["int16"]}, [(b"\x05", b"\x00\x06")]),
    ],
)
def test_lines_are_records(data: bytes, settings: dict[str, Any], expected: list[Any]) -> None:
    assert pairs(data, **settings) == expected


@given(st.lists(st.binary(min_size=1, max_size=5), max_size=8), st.sampled_from([b"\n", b"ab", b"\0"]))
def test_chunk_boundaries_do_not_change_lines(pieces: list[bytes], delimiter: bytes) -> None:
    found = [line for _, lines in split(iter(pieces), InputFormat(delimiter=delimiter), "-") for line in lines]
    whole = b"".join(pieces).split(delimiter)
    assert found == (whole if whole[-1] else whole[:-1])


def test_lines_are_numbered_across_chunks() -> None:
    assert list(split([b"a\nb", b"c\n", b"d"], InputFormat(), "-")) == [(1, [b"a"]), (2, [b"bc"]), (3, [b"d"])]


def test_an_endless_line_is_refused_before_memory_is_full() -> None:
    with pytest.raises(BadLine, match=r"line 2: longer than max\.request\.size, 10 bytes"):
        list(split([b"a\n", *[b"xxxx"] * 100], InputFormat(longest=10), "-"))
    with pytest.raises(BadLine, match=r"line 2: longer than max\.request\.size, 10 bytes"):
        list(split([b"a--", *[b"xxxx"] * 100], InputFormat(delimiter=b"--", longest=10), "-"))


def test_json_can_contain_every_field_of_a_record() -> None:
    line = b'{"topic":"t","key":"k","value":"v","headers":[["a","1"],["a",null]],"partition":2,"timestamp":5,"offset":9,"time":"x"}'
    assert records(line, form="json") == [(b"v", b"k", (("a", b"1"), ("a", None)), 2, 5)]
    assert records(line, form="json", ignore=frozenset({"partition", "timestamp", "headers", "key"})) == [(b"v", None, (), None, None)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"null", None),
        (b'"text"', b"text"),
        (b'"\\u00e9\\n"', "é\n".encode()),
        (b"1.10", b"1.10"),
        (b'{"a": 1}', b'{"a": 1}'),
        (b"[1,2]", b"[1,2]"),
        (b"true", b"true"),
        (b'{"base64":"/w=="}', b"\xff"),
        (b'{"base64":"AA==","more":1}', b'{"base64":"AA==","more":1}'),
    ],
)
def test_json_values_are_kept_as_written(value: bytes, expected: bytes | None) -> None:
    assert records(b'{"value":%b}' % value, form="json")[0][0] == expected


def test_empty_json_lines_are_skipped_and_counted() -> None:
    found = read(b'{"value":1}\n\n  \n{"value":2}\n', form="json")
    assert [list(chunk.numbers) for chunk in found] == [[1, 4]]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"nope", "line 2: not JSON"),
        (b"[1]", "line 2: .*object"),
        (b'{"valeu":1}', "line 2: .*valeu.*fields are key, value"),
        (b'{"key":1}', "line 2: no field 'value'"),
        (b'{"value":1,"partition":"x"}', "line 2: partition: expected a whole number"),
        (b'{"value":1,"timestamp":1.5}', "line 2: timestamp: expected a whole number"),
        (b'{"value":1,"headers":"x"}', "line 2: headers: expected a list"),
        (b'{"value":1,"headers":[["a"]]}', "line 2: headers: expected a list"),
        (b'{"value":{"base64":"!"}}', "line 2: value: invalid base64"),
        (b'{"value":"\xff"}', "(?i)line 2: .*utf-8"),
    ],
)
def test_a_line_that_makes_no_record_is_reported_by_its_number(line: bytes, why: str) -> None:
    with pytest.raises(ReportedError, match=why):
        read(b'{"value":0}\n' + line + b'\n{"value":3}\n', form="json")


def test_records_before_and_after_a_bad_line_are_returned() -> None:
    message: list[str] = []
    source = chunks(CountedInput([("f.txt", io.BytesIO(b"1\nx\n3\ny\n"))]), InputFormat(value=VALUE_FORMATS["int8"]), message.append)
    first = next(source)
    assert (first.numbers, first.records[0][0], message) == ([1], b"\x01", [])
    assert [chunk.numbers for chunk in source] == [[3]]
    assert message == [f"f.txt, line {line}: value: {text!r} is not a whole number of 1 bytes" for line, text in ((2, "x"), (4, "y"))]


def test_headers_are_pairs_or_an_object() -> None:
    assert headers_from_json([["a", "1"], ["a", None], ["b", {"base64": "/w=="}]]) == (("a", b"1"), ("a", None), ("b", b"\xff"))
    assert headers_from_json({"a": "1"}) == (("a", b"1"),)
    assert headers_from_json({}) == ()
    for wrong in ("ab", 5, [["a", "b", "c"]], [1], [[1, "a"]]):
        with pytest.raises(ValueError, match="headers"):
            headers_from_json(wrong)


def test_the_first_csv_line_names_the_columns() -> None:
    data = b'offset,key,value,headers,partition,timestamp\n7,k,"a,b","[[""h"",""1""]]",2,5\n8,,"",,,\n9,"",,,,-1\r\n\n'
    assert records(data, form="csv") == [
        (b"a,b", b"k", (("h", b"1"),), 2, 5),
        (b"", None, (), None, None),
        (None, b"", (), None, None),
    ]


def test_csv_without_a_value_column_makes_json_of_its_rows() -> None:
    data = b'id,name,note\n1,"Ann ""A""",\n2,Bob,"two\nlines"\n'
    assert pairs(data, form="csv", key_column="id") == [
        (b"1", b'{"id":"1","name":"Ann \\"A\\"","note":null}'),
        (b"2", b'{"id":"2","name":"Bob","note":"two\\nlines"}'),
    ]
    assert pairs(b"1,x\n", form="csv", columns=("id", "v"), key_column="id", value_column="v") == [(b"1", b"x")]


@pytest.mark.parametrize(
    ("data", "settings", "why"),
    [
        (b"a,b\n1\n", {}, "line 2: 1 fields, expected 2 columns"),
        (b'key,value\n1,a"b"\n', {}, "line 2: unexpected quote"),
        (b"key,value\n1,2\n3,4,5\n", {}, "line 3: 3 fields"),
        (b"value,headers\n1,x\n", {}, "line 2: headers: not JSON"),
        (b"value,partition\n1,x\n", {}, "line 2: partition: expected a whole number"),
    ],
)
def test_a_row_that_makes_no_record_is_reported_by_its_line(data: bytes, settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ReportedError, match=why):
        read(data, form="csv", **settings)


def test_a_missing_column_is_reported() -> None:
    with pytest.raises(BadLine, match="column 'idd' does not exist; columns are id, v"):
        read(b"id,v\n1,2\n", form="csv", key_column="idd")


def test_an_unclosed_quote_is_reported_after_the_complete_rows() -> None:
    taken: list[InputRecord] = []
    with pytest.raises(BadLine, match="line 3: unclosed quote"):
        for chunk in chunks(CountedInput([("-", io.BytesIO(b'key,value\n1,2\n3,"4\n'))]), InputFormat("csv"), refuse):
            taken += chunk.records
    assert taken == [(b"2", b"1", (), None, None)]


def test_an_unclosed_quote_does_not_buffer_the_whole_input() -> None:
    lines = iter([(1, b'a,"b'), (2, b"c" * 20), (3, b'd"')])
    with pytest.raises(ValueError, match="line 1: unclosed quote"):
        list(joined(lines, 10))
    assert next(lines) == (3, b'd"')


def test_a_whole_file_can_be_one_record(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x\ny\0")
    assert [chunk.records for chunk in whole_files([str(tmp_path / "a")], VALUE_FORMATS["text"])] == [[(b"x\ny\0", None, (), None, None)]]


def test_several_inputs_are_concatenated_and_their_bytes_counted() -> None:
    source = CountedInput([("a", io.BytesIO(b"1\n")), ("b", io.BytesIO(b"2\n3\n"))])
    assert [(chunk.file, list(chunk.numbers)) for chunk in chunks(source, InputFormat(), refuse)] == [("a", [1]), ("b", [1, 2])]
    assert source.done == 6
