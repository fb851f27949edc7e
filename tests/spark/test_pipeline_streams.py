"""Streams whose state is limited by a watermark, and files of every format, run to their results."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import orc, parquet

from ottla.spark.pipeline.checkpoint import read_notes

from .conftest import Topic
from .pipelines import table
from .test_pipeline_views import until_ended

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

Topics = Callable[..., Topic]
OVER_TIME = """
bootstrap = "${servers}"
[[source]]
name = "orders"
topic = "${orders}"
watermark = { column = "at", delay = "1 minute" }
decode = { format = "csv", schema = "id STRING, user STRING, at TIMESTAMP" }
[[source]]
name = "payments"
topic = "${payments}"
watermark = { column = "paid", delay = "1 minute" }
decode = { format = "csv", schema = "id STRING, paid TIMESTAMP" }

[[step]]
name = "visits"
sql = '''
SELECT session_window(at, '5 minutes').start AS start, session_window(at, '5 minutes').end AS end, user, count(*) AS orders
FROM orders GROUP BY session_window(at, '5 minutes'), user
'''
[[step]]
name = "settled"
sql = '''
SELECT o.id, o.at, p.paid FROM orders o
LEFT JOIN payments p ON o.id = p.id AND p.paid BETWEEN o.at AND o.at + INTERVAL 10 MINUTES
'''

[[sink]]
from = "visits"
type = "delta"
path = "${dir}/visits"
[[sink]]
from = "settled"
type = "delta"
path = "${dir}/settled"
"""


def at(clock: str) -> str:
    return f"2026-01-01T{clock}Z"


def lines(*rows: str) -> list[bytes]:
    """``id user 10:00:00`` as a line of csv."""
    return [",".join([*row.split()[:-1], at(row.split()[-1])]).encode() for row in rows]


def rows_of(path: Path, *columns: str) -> list[tuple[Any, ...]]:
    """The rows, with times as HH:MM."""
    rows = table(path) if path.exists() else []
    return sorted((tuple(f"{row[name]:%H:%M}" if hasattr(row[name], "hour") else row[name] for name in columns) for row in rows), key=repr)


def test_sessions_and_unmatched_rows_are_emitted_when_the_watermark_has_passed(spark: Any, a_topic: Topics, tmp_path: Path) -> None:
    orders, payments = a_topic(), a_topic()

    def run() -> tuple[list[Any], list[Any]]:
        until_ended(spark, OVER_TIME, tmp_path, servers=orders.bootstrap, orders=orders.name, payments=payments.name)
        visits = rows_of(tmp_path / "visits", "user", "start", "end", "orders")
        return visits, rows_of(tmp_path / "settled", "id", "at", "paid")

    orders.add(*lines("1 ann 10:00:00", "2 bob 10:01:00", "3 ann 10:04:00", "4 ann 10:08:00"))
    payments.add(*lines("1 10:02:00", "2 10:12:00"))
    # The watermark is 10:07: bob's session is closed; the payment of order 2 was too late, but may not be the last.
    assert run() == ([("bob", "10:01", "10:06", 1)], [("1", "10:00", "10:02")])

    orders.add(*lines("5 ann 10:12:30", "6 bob 10:30:00"))
    payments.add(*lines("4 10:08:30", "6 10:30:00"))
    assert run() == (
        # Four orders, each within five minutes of the previous one, in two runs.
        [("ann", "10:00", "10:17", 4), ("bob", "10:01", "10:06", 1)],
        [
            *[("1", "10:00", "10:02"), ("2", "10:01", None), ("3", "10:04", None)],
            *[("4", "10:08", "10:08"), ("5", "10:12", None), ("6", "10:30", "10:30")],
        ],
    )


FILES = """
[[source]]
name = "rows"
type = "files"
path = "${dir}/in/*.parquet"
schema = "code STRING, n BIGINT"
stream = true
[[source]]
name = "lines"
type = "files"
path = "${dir}/in/*.txt"
stream = true
[[source]]
name = "stripes"
type = "files"
path = "${dir}/in/*.orc"
schema = "code STRING, n BIGINT"
stream = true
[[source]]
name = "names"
type = "files"
path = "${dir}/names*.parquet"
[[source]]
name = "places"
type = "files"
path = "${dir}/places"
format = "orc"
[[source]]
name = "known"
type = "files"
path = "${dir}/known.txt"
[[step]]
name = "all"
sql = '''
SELECT 'parquet' AS form, code, n FROM rows UNION ALL SELECT 'orc', code, n FROM stripes
UNION ALL SELECT 'text', split_part(value, ' ', 1), CAST(split_part(value, ' ', 2) AS BIGINT) FROM lines
'''
[[step]]
name = "named"
sql = '''
SELECT a.form, a.code, a.n, names.name, places.place, known.value IS NOT NULL AS known
FROM all a LEFT JOIN names ON names.code = a.code LEFT JOIN places ON places.code = a.code LEFT JOIN known ON known.value = a.code
'''
[[sink]]
type = "delta"
path = "${dir}/table"
"""


def test_files_of_parquet_text_and_orc_are_streams_or_lookups(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "places").mkdir()
    parquet.write_table(pa.table({"code": ["a"], "name": ["Ann"]}), tmp_path / "names1.parquet")
    parquet.write_table(pa.table({"code": ["c"], "name": ["Cyd"]}), tmp_path / "names2.parquet")
    orc.write_table(pa.table({"code": ["a", "b"], "place": ["Aix", "Bar"]}), tmp_path / "places" / "1.orc")
    (tmp_path / "known.txt").write_text("b\nc\n")

    parquet.write_table(pa.table({"code": ["a", "d"], "n": [1, None]}), tmp_path / "in" / "1.parquet")
    orc.write_table(pa.table({"code": ["b"], "n": [2]}), tmp_path / "in" / "1.orc")
    (tmp_path / "in" / "1.txt").write_text("c 3\na 4\n")
    (tmp_path / "in" / "2.txt").write_text("b 5\n")
    until_ended(spark, FILES, tmp_path)
    assert rows_of(tmp_path / "table", "form", "code", "n", "name", "place", "known") == [
        ("orc", "b", 2, None, "Bar", True),
        ("parquet", "a", 1, "Ann", "Aix", False),
        ("parquet", "d", None, None, None, False),
        ("text", "a", 4, "Ann", "Aix", False),
        ("text", "b", 5, None, "Bar", True),
        ("text", "c", 3, "Cyd", None, True),
    ]
    counted = read_notes(tmp_path / "checkpoint")["named-append"]["total"]
    assert (counted["rows_in"], counted["rows_out"]) == (6, 6), "without a call of reports()"
