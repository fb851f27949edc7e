"""Rejected rows become dead letters with position and reason and are counted; good rows continue."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyiceberg")

from ottla.lake.table.iceberg_catalog import embedded, opened_table
from ottla.spark.pipeline.config.file import parse
from ottla.spark.pipeline.config.toml_table import PipelineError
from ottla.spark.pipeline.dead_letters import DeadLetterTarget
from ottla.spark.pipeline.run import QueryFailed
from ottla.spark.pipeline.status import pipeline_status

from .conftest import Topic
from .pipelines import table

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

Topics = Callable[..., Topic]
JSON = """
[decode]
format = "json"
bad_records = "dead_letter"
[decode.fields]
user = "string"
amount = "bigint"
"""
INTO_TABLE = '[dead_letters]\npath = "${dir}/dead"\n'
POSITIVE = '[[rule]]\nname = "positive"\ncheck = "amount > 0"\n'
KEEP = '[[sink]]\ntype = "delta"\npath = "${dir}/table"\n'
SUMS = """
[[step]]
name = "sums"
sql = "SELECT user, sum(amount) AS amount FROM records GROUP BY user"
[[sink]]
type = "delta"
path = "${dir}/table"
mode = "merge"
keys = ["user"]
"""


def good(user: str, amount: int | None) -> bytes:
    return json.dumps({"user": user, "amount": amount}).encode()


def test_good_rows_and_dead_letters_of_a_batch_are_each_written_once(run: Any, a_topic: Topics, tmp_path: Path) -> None:
    topic = a_topic()
    topic.add(good("a", 1), b"nonsense\xff", good("b", -2), good("c", None), key=b"k\xff")
    (report,) = [report for report in run(topic, JSON + INTO_TABLE + POSITIVE + KEEP) if report.rows_in]
    assert (report.rows_in, report.rows_out, report.dead_letters) == (4, 1, 3)
    # Like a power failure between the tables' commits and Spark's commit log.
    for note in (tmp_path / "checkpoint" / "records-append" / "commits").iterdir():
        note.unlink()
    topic.add(good("d", 4))
    run(topic, JSON + INTO_TABLE + POSITIVE + KEEP)
    assert sorted(row["user"] for row in table(tmp_path / "table")) == ["a", "d"]
    assert "__value" not in table(tmp_path / "table")[0]
    letters = sorted(table(tmp_path / "dead"), key=lambda row: int(row["offset"]))
    assert [(row["offset"], row["rule"], row["key"], row["value"]) for row in letters] == [
        (1, None, b"k\xff", b"nonsense\xff"),
        (2, "positive", b"k\xff", good("b", -2)),
        (3, "positive", b"k\xff", good("c", None)),
    ], "a null breaks a rule too"
    assert [row["reason"] for row in letters] == [
        'the value is not json: "nonsense\ufffd"',
        "rule positive is broken: amount > 0 (amount = -2)",
        "rule positive is broken: amount > 0 (amount = null)",
    ]
    assert {(row["view"], row["topic"], row["partition"]) for row in letters} == {("records", topic.name, 0)}
    assert json.loads(letters[1]["row"])["amount"] == -2
    assert all(row["timestamp"] and row["at"] >= row["timestamp"] for row in letters)


def test_dead_letters_are_rows_of_an_iceberg_table_each_once(run: Any, a_topic: Topics, tmp_path: Path) -> None:
    topic, head = a_topic(), JSON + '[dead_letters]\ntype = "iceberg"\npath = "${dir}/dead"\n'
    topic.add(good("a", 1), b"nonsense\xff", good("b", -2), key=b"k\xff")

    def found() -> list[tuple[int, str | None, bytes, bytes]]:
        with opened_table(embedded(tmp_path / "dead")) as dead:
            rows = sorted(dead.scan().to_arrow().to_pylist(), key=lambda row: int(row["offset"]))
        assert all(row["timestamp"] and row["at"] >= row["timestamp"] for row in rows)
        return [(row["offset"], row["rule"], row["key"], row["value"]) for row in rows]

    def killed_before_the_batch_was_done() -> None:
        for note in (tmp_path / "checkpoint" / "records-append" / "commits").iterdir():
            note.unlink()

    (report,) = [report for report in run(topic, head + POSITIVE + KEEP) if report.rows_in]
    assert (report.rows_out, report.dead_letters) == (1, 2)
    first = [(1, None, b"k\xff", b"nonsense\xff"), (2, "positive", b"k\xff", good("b", -2))]
    assert found() == first
    killed_before_the_batch_was_done()
    run(topic, head + POSITIVE + KEEP)
    assert found() == first
    # Another rule makes other dead letters of the same batch.
    killed_before_the_batch_was_done()
    run(topic, head + POSITIVE.replace("amount > 0", "amount > 1") + KEEP)
    assert [offset for offset, *_ in found()] == [0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("letters", "key", "problem"),
    [
        ('type = "iceberg"', "path", "name the directory of the table, or catalog and table"),
        ('type = "iceberg"\ncatalog = "nowhere"\ntable = "a.t"', "catalog", "catalog nowhere is not configured"),
        ('type = "iceberg"\npath = "d"\ntopic = "t"', "topic", "unknown key"),
        ('type = "parquet"\npath = "d"', "type", "expected delta or iceberg or topic"),
        ('type = "topic"\npath = "d"', "path", "set exactly one target"),
        ('catalog = "lake"\ntable = "a.t"', "path", 'for an Iceberg table type = "iceberg"'),
    ],
)
def test_targets_of_dead_letters_that_cannot_be_are_refused_by_name(letters: str, key: str, problem: str, tmp_path: Path) -> None:
    text = f'bootstrap = "h:1"\ncheckpoint = "c"\nsource = {{ topic = "t" }}\n[dead_letters]\n{letters}\n{JSON}{KEEP}'
    with pytest.raises(PipelineError) as refused:
        parse(text, tmp_path / "p.toml", {"dir": str(tmp_path)})
    assert refused.value.key == f"dead_letters.{key}" and problem in refused.value.problem, refused.value


def test_a_table_of_dead_letters_with_other_columns_is_refused_and_the_status_has_its_version(spark: Any, tmp_path: Path) -> None:
    text = f'bootstrap = "127.0.0.1:1"\ncheckpoint = "{tmp_path}/c"\nsource = {{ topic = "t" }}\n{JSON}{KEEP}'
    pipeline = parse(text + '[dead_letters]\ntype = "iceberg"\npath = "${dir}/dead"\n', tmp_path / "p.toml", {"dir": str(tmp_path)})
    target = DeadLetterTarget(pipeline)
    target.prepare(spark.createDataFrame([], "reason string"))
    target.prepare(spark.createDataFrame([], "reason string"))
    with pytest.raises(PipelineError, match=r"has the columns .* and the results have") as refused:
        target.prepare(spark.createDataFrame([], "reason string, more string"))
    assert refused.value.key == "dead_letters.path"
    assert pipeline_status(pipeline)["targets"] == [{"type": "iceberg", "path": f"{tmp_path}/dead", "dead_letters": True, "version": 0}]


def test_a_row_is_in_the_table_or_a_dead_letter_when_the_rules_change_before_a_retry(run: Any, a_topic: Topics, tmp_path: Path) -> None:
    def killed_before_the_batch_was_done(*, table_written: bool) -> None:
        for note in (tmp_path / "checkpoint" / "records-append" / "commits").iterdir():
            note.unlink()
        if not table_written:
            shutil.rmtree(tmp_path / "table")

    def found() -> tuple[list[int], list[int]]:
        letters = sorted(int(row["offset"]) for row in table(tmp_path / "dead"))
        return sorted(int(row["_offset"]) for row in table(tmp_path / "table")), letters

    topic, head, stricter = a_topic(), JSON + INTO_TABLE, POSITIVE.replace("amount > 0", "amount > 1")
    topic.add(good("a", 1), good("b", -2), good("c", 5))
    run(topic, head + POSITIVE + KEEP)
    assert found() == ([0, 2], [1])
    killed_before_the_batch_was_done(table_written=False)
    run(topic, head + stricter + KEEP)
    assert found() == ([2], [0, 1, 1]), "the dead letters of the batch are written again, since they differ"
    killed_before_the_batch_was_done(table_written=True)
    run(topic, head + stricter + KEEP)
    assert found() == ([2], [0, 1, 1]), "the same records exist once"


def test_an_aggregate_of_a_retried_batch_follows_the_current_rules(run: Any, a_topic: Topics, tmp_path: Path) -> None:
    topic, head = a_topic(), JSON + INTO_TABLE
    topic.add(good("a", 1), good("a", 20))
    run(topic, head + POSITIVE.replace("> 0", "> 10") + SUMS)
    assert table(tmp_path / "table") == [{"user": "a", "amount": 20}]
    for note in (tmp_path / "checkpoint" / "sums-update" / "commits").iterdir():
        note.unlink()
    run(topic, head + POSITIVE + SUMS)
    assert table(tmp_path / "table") == [{"user": "a", "amount": 21}]


def test_rejected_rows_are_not_aggregated(run: Any, spark: Any, a_topic: Topics, tmp_path: Path) -> None:
    topic, dead = a_topic(), a_topic()
    topic.add(good("a", 1), b"nonsense", good("a", -2), good("a", 4))
    reports = run(topic, JSON + f'[dead_letters]\ntopic = "{dead.name}"\n' + POSITIVE + SUMS)
    assert [(row["user"], row["amount"]) for row in table(tmp_path / "table")] == [("a", 5)]
    assert sum(report.dead_letters for report in reports) == 2
    found = dead.source(spark.read, includeHeaders="true").load().orderBy("offset").collect()
    assert sorted(bytes(row.value) for row in found) == sorted([b"nonsense", good("a", -2)])
    reported = [{header.key: header.value and bytes(header.value) for header in row.headers} for row in found]
    assert {(one["ottla.topic"], one["ottla.offset"]) for one in reported} == {(topic.name.encode(), b"1"), (topic.name.encode(), b"2")}
    assert {one["ottla.rule"] for one in reported} == {None, b"positive"}


def test_a_rule_on_a_step_can_drop_rows_or_make_dead_letters(run: Any, a_topic: Topics, tmp_path: Path) -> None:
    topic = a_topic()
    topic.add(*[good("a", amount) for amount in (1, 20, 300)])
    rules = """
[[step]]
name = "taxed"
sql = "SELECT user, amount * 2 AS amount, _offset FROM records"
[[rule]]
name = "small"
on = "taxed"
check = "amount < 500"
[[rule]]
name = "large"
on = "taxed"
check = "amount > 10"
action = "drop"
"""
    run(topic, JSON.replace('"dead_letter"', '"drop"') + INTO_TABLE + rules + KEEP)
    assert [row["amount"] for row in table(tmp_path / "table")] == [40]
    (letter,) = table(tmp_path / "dead")
    assert (letter["rule"], letter["offset"], letter["topic"], letter["value"]) == ("small", 2, None, None)
    assert json.loads(letter["row"]) == {"user": "a", "amount": 600, "_offset": 2}


def test_a_rule_can_fail_the_query_with_the_records_position(run: Any, a_topic: Topics) -> None:
    topic = a_topic()
    topic.add(good("a", 1), good("a", -1))
    rule = POSITIVE + 'action = "fail"\n'
    with pytest.raises(QueryFailed, match=rf"rule positive is broken: amount > 0 \(amount = -1\) by {topic.name}-0 at offset 1"):
        run(topic, JSON.replace('"dead_letter"', '"keep"') + rule + KEEP)


@pytest.mark.parametrize(
    ("text", "key", "sentence"),
    [
        (JSON + INTO_TABLE + POSITIVE.replace("amount >", "amout >") + KEEP, "rule[0].check", "no column amout; did you mean amount?"),
        (JSON + INTO_TABLE + POSITIVE.replace("amount > 0", "amount") + KEEP, "rule[0].check", "due to data type mismatch"),
        (JSON + INTO_TABLE + POSITIVE.replace("check", 'on = "sums"\ncheck') + SUMS, "rule[0].on", "put the rule on an earlier view"),
    ],
)
def test_a_rule_that_spark_cannot_check_is_refused(run: Any, a_topic: Topics, text: str, key: str, sentence: str) -> None:
    with pytest.raises(PipelineError) as refused:
        run(a_topic(), text)
    assert refused.value.key == key
    assert sentence in refused.value.problem
    assert not re.search(r"\[[A-Z_.]+\]|__key", refused.value.problem), "neither Spark's terms nor internal columns"


def test_a_rule_on_a_step_that_deduplicates_is_refused(run: Any, a_topic: Topics) -> None:
    once = '[[step]]\nname = "once"\nsql = "SELECT *, _timestamp AS at FROM records"\ndeduplicate = ["user"]\nwithin = "watermark"\n'
    once += 'watermark = { column = "at", delay = "1 minute" }\n'
    rule = POSITIVE.replace("check", 'on = "once"\ncheck')
    with pytest.raises(PipelineError, match="once deduplicates; put the rule on an earlier view, or on a later one"):
        run(a_topic(), JSON + INTO_TABLE + once + rule + KEEP)
