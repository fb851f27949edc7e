"""Data loss: what is told, to whom, and what is none."""

import json
import logging
from pathlib import Path

import pytest

from ottla.spark.source.data_loss import DataLoss, DataLossPolicy, Loss
from ottla.spark.source.starting_offsets import latest_offsets, resume_offsets

from .test_starting_offsets import T0, T1, MemoryCatalog, options

GONE = Loss("deleted", "orders", 3, 10, 25, 25, "orders-3 should be read from 10 but begins at 25")


def test_a_loss_ends_the_query_unless_the_user_decided_otherwise() -> None:
    with pytest.raises(DataLoss, match="begins at 25"):
        DataLossPolicy().handle(GONE)
    DataLossPolicy("warn").handle(GONE)
    DataLossPolicy("skip").handle(GONE)


def test_a_warning_says_what_is_lost_in_words_and_as_json(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ottla.spark"):
        DataLossPolicy("warn").handle(GONE)
    (said,) = (record.getMessage() for record in caplog.records)
    words, brace, told = said.partition("{")
    assert words == "data loss: orders-3 should be read from 10 but begins at 25 "
    report = json.loads(brace + told)
    assert [report[name] for name in ("topic", "partition", "lost_from", "lost_to", "earliest", "cause")] == [
        "orders",
        3,
        10,
        25,
        25,
        "deleted",
    ]
    assert report["time"].endswith("+00:00")


def test_to_skip_is_to_say_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ottla.spark"):
        DataLossPolicy("skip").handle(GONE)
    assert caplog.records == []


@pytest.mark.parametrize("policy", ["fail", "warn", "skip"])
def test_each_loss_is_reported_once_whatever_becomes_of_it(tmp_path: Path, policy: str) -> None:
    loss_policy = DataLossPolicy(policy, str(tmp_path / "losses"))  # type: ignore[arg-type]
    for _ in range(3):
        try:
            loss_policy.handle(GONE)
        except DataLoss:
            assert policy == "fail"
    (line,) = (tmp_path / "losses").read_text().splitlines()
    assert json.loads(line)["lost_to"] == 25


def test_a_report_that_cannot_be_written_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    DataLossPolicy("skip", str(tmp_path)).handle(GONE)
    assert "cannot write the report" in caplog.text


def test_a_topic_with_another_id_is_loss_even_where_it_is_longer(tmp_path: Path) -> None:
    catalog, loss_policy = MemoryCatalog(), DataLossPolicy("skip", str(tmp_path / "losses"))
    carried = resume_offsets(
        catalog, options(), {T0: 30, T1: 30}, latest_offsets(catalog, options()), loss_policy, {"orders": "(its id was a and is b)"}
    )
    assert (carried.begin, carried.reset) == ({T0: 0, T1: 20}, {T0, T1})
    reports = [json.loads(line) for line in (tmp_path / "losses").read_text().splitlines()]
    assert [(one["cause"], one["lost_from"], one["lost_to"], one["earliest"]) for one in reports] == [
        ("recreated", 30, None, 0),
        ("recreated", 30, None, 20),
    ]


def test_a_log_that_was_cut_goes_on_at_its_end_and_one_of_another_topic_at_its_beginning() -> None:
    catalog, allowed = MemoryCatalog(), DataLossPolicy("skip")
    known, latest = {T0: 101, T1: 30}, latest_offsets(catalog, options())
    assert resume_offsets(catalog, options(), known, latest, allowed, {"orders": None}).begin == {T0: 100, T1: 30}
    assert resume_offsets(catalog, options(), known, latest, allowed, {}).begin == {T0: 0, T1: 30}
