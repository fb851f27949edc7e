"""Data loss: what counts as loss, and where it is reported."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.spark.source.data_loss import DataLoss, DataLossPolicy, Loss
from ottla.spark.source.starting_offsets import latest_offsets, resume_offsets

from .test_starting_offsets import T0, T1, MemoryCatalog, options

GONE = Loss("deleted", "orders", 3, 10, 25, 25, "orders-3 should be read from 10 but begins at 25")


def test_data_loss_fails_the_query_unless_the_user_allows_it() -> None:
    with pytest.raises(DataLoss, match="begins at 25"):
        DataLossPolicy().handle(GONE)
    DataLossPolicy("warn").handle(GONE)
    DataLossPolicy("skip").handle(GONE)


def test_a_warning_names_the_lost_records_as_text_and_as_json(spark_log: Callable[[], list[str]]) -> None:
    DataLossPolicy("warn").handle(GONE)
    (said,) = spark_log()
    words, brace, reported = said.partition("{")
    assert words == "data loss: orders-3 should be read from 10 but begins at 25 "
    report = json.loads(brace + reported)
    assert [report[name] for name in ("topic", "partition", "lost_from", "lost_to", "earliest", "cause")] == [
        "orders",
        3,
        10,
        25,
        25,
        "deleted",
    ]
    assert report["time"].endswith("+00:00")


def test_skip_logs_nothing(spark_log: Callable[[], list[str]]) -> None:
    DataLossPolicy("skip").handle(GONE)
    assert spark_log() == []


@pytest.mark.parametrize("policy", ["fail", "warn", "skip"])
def test_each_loss_is_reported_once_under_every_policy(tmp_path: Path, policy: str) -> None:
    loss_policy = DataLossPolicy(policy, str(tmp_path / "losses"))  # type: ignore[arg-type]
    for _ in range(3):
        try:
            loss_policy.handle(GONE)
        except DataLoss:
            assert policy == "fail"
    (line,) = (tmp_path / "losses").read_text().splitlines()
    assert json.loads(line)["lost_to"] == 25


def test_a_failed_report_does_not_end_the_query(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    DataLossPolicy("skip", str(tmp_path)).handle(GONE)
    assert "cannot write the report" in caplog.text


def test_a_topic_with_another_id_is_data_loss_even_if_it_is_longer(tmp_path: Path) -> None:
    catalog, loss_policy = MemoryCatalog(), DataLossPolicy("skip", str(tmp_path / "losses"))
    carried = resume_offsets(
        catalog, options(), {T0: 30, T1: 30}, latest_offsets(catalog, options()), loss_policy, {"orders": "(its id was a and is b)"}
    )
    assert (carried.begin, carried.reset) == ({T0: 0, T1: 20}, {T0, T1})  # type: ignore[comparison-overlap]
    reports = [json.loads(line) for line in (tmp_path / "losses").read_text().splitlines()]
    assert [(one["cause"], one["lost_from"], one["lost_to"], one["earliest"]) for one in reports] == [
        ("recreated", 30, None, 0),
        ("recreated", 30, None, 20),
    ]


def test_a_truncated_log_continues_at_its_end_and_a_recreated_one_at_its_beginning() -> None:
    catalog, allowed = MemoryCatalog(), DataLossPolicy("skip")
    known, latest = {T0: 101, T1: 30}, latest_offsets(catalog, options())
    assert resume_offsets(catalog, options(), known, latest, allowed, {"orders": None}).begin == {T0: 100, T1: 30}
    assert resume_offsets(catalog, options(), known, latest, allowed, {}).begin == {T0: 0, T1: 30}
