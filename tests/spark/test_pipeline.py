"""Pipelines end to end: decode, SQL, sinks, restarts, errors, in the shared session."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.spark.pipeline.config.toml_table import PipelineError
from ottla.spark.pipeline.run import QueryFailed

from .conftest import Topic
from .pipelines import records, table

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

Topics = Callable[..., Topic]
JSON = """
[decode]
format = "json"
[decode.fields]
user = "string"
n = "bigint"
at = { type = "timestamp", format = "epoch_ms" }
"""
KEEP = '[[sink]]\ntype = "delta"\npath = "${dir}/table"\n'
SUMS = """
[[step]]
name = "sums"
sql = "SELECT user, count(*) AS records, sum(n) AS n FROM records GROUP BY user"
[[sink]]
type = "delta"
path = "${dir}/table"
mode = "merge"
keys = ["user"]
[[sink]]
type = "topic"
topic = "${out}"
key = "user"
"""


def test_every_record_is_appended_once_over_restarts(run: Any, a_topic: Topics, tmp_path: Path) -> None:
    topic = a_topic(partitions=2)
    topic.add(*records(0, 50))
    first = run(topic, JSON + KEEP)
    assert [(report.rows_in, report.rows_out, report.lag) for report in first if report.rows_in] == [(50, 50, 0)]
    topic.add(*records(50, 60))
    run(topic, JSON + KEEP)
    found = table(tmp_path / "table")
    assert sorted(row["n"] for row in found) == list(range(60))
    assert {row["at"].timestamp() * 1000 - row["n"] for row in found} == {1_700_000_000_000}


def test_a_retried_batch_is_written_once(run: Any, a_topic: Topics, tmp_path: Path) -> None:
    topic = a_topic()
    topic.add(*records(0, 20))
    run(topic, JSON + KEEP)
    # Like a power failure between the table's commit and Spark's commit log.
    for note in (tmp_path / "checkpoint" / "records-append" / "commits").iterdir():
        note.unlink()
    topic.add(*records(20, 30))
    run(topic, JSON + KEEP)
    assert sorted(row["n"] for row in table(tmp_path / "table")) == list(range(30))


def test_a_retried_batch_updates_state_even_if_the_table_has_it(run: Any, a_topic: Topics, tmp_path: Path) -> None:
    step = """
    [[step]]
    name = "once"
    sql = "SELECT n FROM records"
    deduplicate = ["n"]
    [[rule]]
    name = "late"
    on = "even"
    check = "n <> 10"
    action = "drop"
    [[step]]
    name = "even"
    sql = "SELECT n FROM once WHERE n % 2 = 0"
    """
    topic = a_topic()
    topic.add(*records(0, 9))
    run(topic, JSON + step + KEEP)
    for note in (tmp_path / "checkpoint" / "even-append" / "commits").iterdir():
        note.unlink()
    topic.add(*records(5, 13))
    reports = [report for report in run(topic, JSON + step + KEEP) if report.rows_in]
    assert [(report.rows_in, report.rows_out, report.state_rows) for report in reports] == [(9, 0, 9), (8, 1, 13)]
    assert sorted(row["n"] for row in table(tmp_path / "table")) == [0, 2, 4, 6, 8, 12]


def test_a_checkpoint_with_a_partial_first_file_can_start(run: Any, a_topic: Topics, tmp_path: Path) -> None:
    topic = a_topic()
    topic.add(*records(0, 20))
    # Spark leaves such files if it is killed or the disk is full before the first batch is planned.
    offsets = tmp_path / "checkpoint" / "records-append" / "offsets"
    offsets.mkdir(parents=True)
    for name in (".0.5ac3745b-c2b0-46c1-9167-7bd702af6bd8.tmp", "..0.5ac3745b-c2b0-46c1-9167-7bd702af6bd8.tmp.crc"):
        (offsets / name).touch()
    run(topic, JSON + KEEP)
    assert sorted(row["n"] for row in table(tmp_path / "table")) == list(range(20))


def test_aggregates_are_merged_by_key_into_a_table_and_a_topic(run: Any, spark: Any, a_topic: Topics, tmp_path: Path) -> None:
    topic, out = a_topic(), a_topic()
    topic.add(*records(0, 30))
    run(topic, JSON + SUMS, out=out.name)
    topic.add(*records(30, 33), b"not json")
    run(topic, JSON + SUMS, out=out.name)
    found = {row["user"]: (row["records"], row["n"]) for row in table(tmp_path / "table")}
    assert found == {"u0": (11, 165), "u1": (11, 176), "u2": (11, 187), None: (1, None)}
    newest = {row.key and bytes(row.key): json.loads(row.value) for row in out.source(spark.read).load().orderBy("offset").collect()}
    assert newest[b"u0"] == {"user": "u0", "records": 11, "n": 165}
    assert newest[None] == {"user": None, "records": 1, "n": None}


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (
            "keep",
            [
                *[("good", False), (None, True), ("half", True), (None, False), (None, True), (None, True), ("d", True)],
                *[("e", True), ("g", True), ("h", True), ("i", False), ("j", True)],
            ],
        ),
        ("drop", [("good", False), (None, False), ("i", False)]),
    ],
)
def test_records_that_cannot_be_decoded_are_kept_and_marked_or_dropped(
    run: Any, a_topic: Topics, tmp_path: Path, policy: str, kept: list[Any]
) -> None:
    topic = a_topic()
    topic.add(b'{"user": "good", "n": 1, "at": 5}', b"nonsense", b'{"user": "half", "n": "one"}', None)
    # Trailing text after the object.
    topic.add(b'{"user":"a","n":1}{"user":"b","n":2}', b'{"user":"c","n":3} trailing', b'{"user":"d","n":4}], "x": [1')
    # A value that imitates the text around values must not be accepted.
    topic.add(b'{"user":"e"}],"v":[{"user":"f"}', '{"user":"g"},{"\ufdd0":true}],"w":[{"x":1}'.encode())
    topic.add(rb'{"user":"h"},{"\ufdd0":true}],"w":[{"x":1}', rb'{"user":"i","\ufdd0":true}', b'{"user":"j"},{"v":true}')
    run(topic, JSON.replace("[decode.fields]", f'bad_records = "{policy}"\n[decode.fields]') + KEEP)
    assert [(row["user"], row["_malformed"]) for row in sorted(table(tmp_path / "table"), key=lambda row: row["_offset"])] == kept


def test_a_key_is_read_as_json_like_a_value(run: Any, a_topic: Topics, tmp_path: Path) -> None:
    topic = a_topic()
    keys = {
        b'{"id": 1, "at": {"x": 2}}': {"id": 1, "at": {"x": 2}},
        b'{"id": 2} {"id": 3}': None,
        b'{"id": 4} trailing': None,
        b'{"id": 5}], "x": [1': None,
        b"no JSON": None,
        b"null": None,
        b'{"id": "six", "at": {"x": 7}}': {"id": None, "at": {"x": 7}},
    }
    for key in [*keys, None]:
        topic.add(b"x", key=key)
    run(topic, '[decode]\nformat = "raw"\nkey = { format = "json", schema = "id INT, at STRUCT<x: INT>" }\n' + KEEP)
    rows = sorted(table(tmp_path / "table"), key=lambda row: row["_offset"])
    assert [(row["_key"], row["_malformed"]) for row in rows] == [(expected, False) for expected in [*keys.values(), None]]


def test_an_undecodable_record_fails_the_query_with_its_position(run: Any, a_topic: Topics) -> None:
    topic = a_topic()
    topic.add(b'{"user": "good", "n": 1, "at": 5}', b"nonsense")
    with pytest.raises(QueryFailed, match=f"cannot decode the value of {topic.name}-0 at offset 1"):
        run(topic, JSON.replace("[decode.fields]", 'bad_records = "fail"\n[decode.fields]') + KEEP)


def test_a_regular_expression_defines_typed_columns(run: Any, a_topic: Topics, tmp_path: Path) -> None:
    topic = a_topic()
    topic.add(b'h1 [17/May/2015:10:05:03 +0000] "a b" 12', b'h2 [17/May/2015:10:05:04 +0200] "" -', b"something else", b'h3 [x] "q" 1')
    # The separator of groups inside a value must not separate them.
    topic.add("\ufdd0h4\ufdd0\ufdd0\ufdd05".encode(), 'h5\ufdd0 [17/May/2015:10:05:05 +0000] "" 6'.encode())
    run(
        topic,
        r"""
[decode]
format = "regex"
pattern = '^(?<host>\S+) \[(?P<at>[^\]]+)\] "(?<said_it>[^"]*)" (?<size>\S+)'
nulls = ["-"]
fields = { at = { type = "timestamp", format = "dd/MMM/yyyy:HH:mm:ss Z" }, size = "int" }
"""
        + KEEP,
    )
    rows = sorted(table(tmp_path / "table"), key=lambda row: row["_offset"])
    assert [(row["host"], row["said_it"], row["size"], row["_malformed"]) for row in rows] == [
        ("h1", "a b", 12, False),
        ("h2", "", None, False),
        (None, None, None, True),
        ("h3", "q", 1, True),
        (None, None, None, True),
        ("h5\ufffd", "", 6, False),
    ]
    assert [row["at"] and row["at"].isoformat() for row in rows] == [
        "2015-05-17T10:05:03+00:00", "2015-05-17T08:05:04+00:00", None, None, None, "2015-05-17T10:05:05+00:00",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "where", "key", "sentence"),
    [
        (
            JSON + '[[step]]\nname = "a"\nsql = "SELECT usr FROM records"\n' + KEEP,
            ":15",
            "step[0].sql",
            "no column usr; did you mean user?",
        ),
        (JSON + '[[step]]\nname = "a"\nsql = "SELECT user FRM records x"\n' + KEEP, ":15", "step[0].sql", "Syntax error"),
        (JSON.replace('"bigint"', '"bigit"') + KEEP, ":11", "decode.fields.n", "'bigit' is not a type of Spark"),
        (
            JSON + '[[step]]\nname = "a"\nsql = "SELECT * FROM records"\nwatermark = { column = "n", delay = "1 minute" }\n' + KEEP,
            ":16",
            "step[0].watermark.column",
            "column n is bigint; a watermark needs a column of type timestamp",
        ),
        (JSON + '[[sink]]\ntype = "topic"\ntopic = "x"\nkey = "usr"\n', ":16", "sink[0].key", "there is no column usr; did you mean user?"),
    ],
)
def test_a_spark_error_has_its_line_in_the_file(run: Any, a_topic: Topics, text: str, where: str, key: str, sentence: str) -> None:
    with pytest.raises(PipelineError) as refused:
        run(a_topic(), text)
    assert refused.value.key == key
    assert refused.value.where.endswith(where)
    assert sentence in refused.value.problem
    assert "\n" not in refused.value.problem


def test_a_table_with_other_columns_is_not_written(run: Any, a_topic: Topics, tmp_path: Path) -> None:
    topic = a_topic()
    topic.add(*records(0, 3))
    run(topic, JSON + KEEP)
    topic.add(*records(3, 4))
    with pytest.raises(QueryFailed, match="write to another path"):
        run(topic, JSON.replace('n = "bigint"', 'n = "int"') + KEEP)


FUNCTIONS = """
def country(code: str) -> str:
    return {"u0": "Austria"}[code]
"""


@pytest.mark.parametrize(
    ("sql", "sentence"),
    [
        ("country(user)", "{dir}/words.py:3: country: KeyError: 'u1'"),
        ("CAST(user AS INT)", '{dir}/p.toml:17: step[0].sql: The value \'u0\' of the type "STRING" cannot be cast to "INT"'),
        ("10 / n", "{dir}/p.toml:17: step[0].sql: Division by zero"),
    ],
)
def test_an_error_at_a_row_has_its_line(run: Any, a_topic: Topics, tmp_path: Path, sql: str, sentence: str) -> None:
    topic = a_topic()
    topic.add(*records(0, 2))
    (tmp_path / "words.py").write_text(FUNCTIONS)
    step = f'[[step]]\nname = "made"\nsql = """\nSELECT user,\n       {sql} AS made\nFROM records"""\n'
    with pytest.raises(QueryFailed) as failed:
        run(topic, JSON + step + KEEP + '[functions]\nmodule = "words.py"\n')
    assert f" failed: {sentence.format(dir=tmp_path)}" in str(failed.value)


def test_a_missing_topic_is_reported_with_its_line(run: Any, a_topic: Topics, tmp_path: Path) -> None:
    topic = a_topic()
    topic.name = "no-such-topic"
    with pytest.raises(QueryFailed) as failed:
        run(topic, JSON + KEEP)
    message = "source.topic: topic no-such-topic does not exist; create it with: ottla topic create no-such-topic"
    assert f"{tmp_path}/p.toml:5: {message}" in str(failed.value)


def test_a_window_with_a_watermark_is_appended_when_it_closes(run: Any, a_topic: Topics, tmp_path: Path) -> None:
    topic = a_topic()
    windows = """
[[step]]
name = "timed"
sql = "SELECT at, n FROM records"
watermark = { column = "at", delay = "2 seconds" }
[[step]]
name = "windows"
sql = "SELECT window(at, '10 seconds').start AS start, count(*) AS records FROM timed GROUP BY window(at, '10 seconds')"
"""
    topic.add(*[json.dumps({"user": "u", "n": s, "at": 1000 * s}).encode() for s in range(25)])
    run(topic, JSON + windows + KEEP)
    assert [(row["start"].timestamp(), row["records"]) for row in table(tmp_path / "table")] in ([(0, 10), (10, 10)], [(10, 10), (0, 10)])


def test_a_record_is_in_every_sliding_window_that_contains_its_time(run: Any, a_topic: Topics, tmp_path: Path) -> None:
    topic = a_topic()
    sliding = '''
[[step]]
name = "windows"
sql = """SELECT window(at, '10 seconds', '5 seconds').start AS start, sum(n) AS n, count(*) AS records
FROM records GROUP BY window(at, '10 seconds', '5 seconds')"""
'''
    timed = "watermark = { column = 'at', delay = '2 seconds' }\n" + JSON
    # The last record is at 24, so the windows that end up to 22 are closed.
    topic.add(*[json.dumps({"user": "u", "n": s, "at": 1000 * s}).encode() for s in range(25)])
    run(topic, timed + sliding + KEEP)
    rows = sorted((row["start"].timestamp(), row["records"], row["n"]) for row in table(tmp_path / "table"))
    assert rows == [(start, len(held), sum(held)) for start in (-5, 0, 5, 10) for held in [range(max(start, 0), start + 10)]]
    # A record too late for all or all but one of its windows does not change a closed window.
    topic.add(*[json.dumps({"user": "u", "n": 1000, "at": at}).encode() for at in (16_000, 3_000, 40_000)])
    run(topic, timed + sliding + KEEP)
    rows = sorted((row["start"].timestamp(), row["records"], row["n"]) for row in table(tmp_path / "table"))
    assert rows[4:] == [(15, 11, sum(range(15, 25)) + 1000), (20, 5, sum(range(20, 25)))]
    assert rows[:4] == [(start, len(held), sum(held)) for start in (-5, 0, 5, 10) for held in [range(max(start, 0), start + 10)]]
