"""The reason of a dead letter: field and value, for each format, shortened."""

from pathlib import Path
from typing import Any

import pytest

from ottla.spark.pipeline.config.file import parse
from ottla.spark.pipeline.rejected_rows import SHOWN_LETTERS, broken, undecodable

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

COLUMNS = "user STRING, ms INT, at TIMESTAMP"
REST = '[source]\ntopic = "t"\n[[sink]]\ntype = "console"\n[decode]\n'
FIELDS = 'fields = { user = "string", ms = "int", at = "timestamp" }\n'
FORMATS = {
    "json": 'format = "json"\n' + FIELDS,
    "csv": 'format = "csv"\nnulls = ["-"]\n' + FIELDS,
    "regex": "format = 'regex'\npattern = '(?<user>\\w+) (?<ms>\\S+) (?<at>\\S+)'\nnulls = ['-']\n"
    + 'fields = { ms = "int", at = "timestamp" }\n',
}


@pytest.mark.parametrize(
    ("form", "value", "read", "reason"),
    [
        ("json", '{"user": "a", "ms": "soon", "at": "2026-01-01"}', ("a", None), 'field ms: "soon" is not int'),
        ("json", '{"user": "a", "ms": 1, "at": "x"}', ("a", 1), 'field at: "x" is not timestamp'),
        ("json", '{"ms": 12', (None, None), 'the value is not json: "{"ms": 12"'),
        ("json", "no'thing\\", (None, None), 'the value is not json: "no\'thing\\"'),
        ("csv", "a,soon,-", ("a", None), 'field ms: "soon" is not int'),
        ("csv", "a,-,late", ("a", None), 'field at: "late" is not timestamp'),
        ("regex", "a soon -", ("a", None), 'field ms: "soon" is not int'),
        ("regex", "??", (None, None), 'the value does not match the pattern: "??"'),
        ("json", '{"ms": "' + "9" * 1000 + '"}', (None, None), f'field ms: "{"9" * SHOWN_LETTERS}..." is not int'),
    ],
)
def test_the_reason_names_the_field_and_the_value(
    spark: Any, form: str, value: str, read: tuple[str | None, int | None], reason: str
) -> None:
    decode = parse(REST + FORMATS[form], Path("p.toml"), {}).sources[0].decode
    assert decode is not None
    frame = spark.createDataFrame([(*read, None, value.encode())], f"{COLUMNS}, __value BINARY")
    named = frame.drop("__value")
    assert frame.selectExpr(undecodable(decode, named, "__value")).first()[0] == reason


def test_a_broken_rule_names_the_values_of_its_columns(spark: Any) -> None:
    frame = spark.createDataFrame([("a'b", -3, None, b"x")], f"{COLUMNS}, __value BINARY")
    expression = broken("rule positive is broken: ms > 0 AND at IS NOT NULL", "ms > 0 AND at IS NOT NULL AND user <> 'at user'", frame)
    assert frame.selectExpr(expression).first()[0] == "rule positive is broken: ms > 0 AND at IS NOT NULL (user = a'b, ms = -3, at = null)"
    assert frame.selectExpr(broken("rule r is broken: 1 = 2", "1 = 2", frame)).first()[0] == "rule r is broken: 1 = 2"
