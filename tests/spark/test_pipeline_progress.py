"""Progress as text and JSON, and retryable errors."""

import io
import itertools
import json
import threading
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.spark.pipeline import foreground
from ottla.spark.pipeline.foreground import RetryState, RunTotals
from ottla.spark.pipeline.progress import JsonLines, figures_of, lag_summary, progress_of
from ottla.spark.pipeline.query import PlannedQuery, RunningQuery
from ottla.spark.pipeline.retryable_errors import backoffs_s, is_retryable
from ottla.spark.pipeline.run import QueryFailed

TOPICS = {"startOffset": None, "endOffset": {"a": {"0": 3, "1": 7}}, "latestOffset": {"a": {"0": 5, "1": 7, "2": 4}}}
FILES = {"startOffset": None, "endOffset": '{"logOffset": 0}', "latestOffset": None}


def report(**more: Any) -> dict[str, Any]:
    made = {"batchId": 4, "batchDuration": 500, "numInputRows": 100, "timestamp": "2026-05-17T10:00:00.000Z", "sources": [TOPICS, FILES]}
    return {**made, **more}


def test_progress_has_lag_per_partition_dead_letters_state_and_watermark() -> None:
    progress = progress_of(
        "sums",
        report(eventTime={"watermark": "2026-05-17T09:59:50.000Z"}, stateOperators=[{"numRowsTotal": 3}, {"numRowsTotal": 4}]),
        {4: 60},
        {4: 40},
    )
    assert asdict(progress) == {
        "query": "sums",
        "batch": 4,
        "at": "2026-05-17T10:00:00.000Z",
        "rows_in": 100,
        "rows_out": 60,
        "rows_in_per_s": 200.0,
        "rows_out_per_s": 120.0,
        "batch_ms": 500,
        "lag": 6,
        "watermark": "2026-05-17T09:59:50.000Z",
        "dead_letters": 40,
        "state_rows": 7,
        "lags": {"a": {"0": 2, "1": 0, "2": 4}},
        "rows_in_by_source": {},
    }
    out = io.StringIO()
    JsonLines(out).batch(progress)
    assert json.loads(out.getvalue()) == {"event": "progress", **asdict(progress)}


def test_the_lag_is_null_until_the_log_end_is_known() -> None:
    # As after a restart: the batch is run again, and Spark has not requested the log end.
    progress = progress_of("q", report(sources=[{**TOPICS, "latestOffset": None}, FILES]), {})
    assert progress.lag is None and progress.lags == {"a": {"0": None, "1": None}}
    assert json.loads(json.dumps(asdict(progress)))["lag"] is None
    assert figures_of(progress, 1, 1, 0)["lag"] == "unknown" and lag_summary([progress]) == ""


def reading(topic: str, start: int | None, end: int, counted: int) -> dict[str, Any]:
    first = None if start is None else {topic: {"0": start}}
    return {"startOffset": first, "endOffset": {topic: {"0": end}}, "latestOffset": {topic: {"0": end}}, "numInputRows": counted}


def test_a_run_counts_each_record_once_per_source() -> None:
    sums = RunTotals()
    # Two queries read both topics, one of them one topic in two places: Spark counts its rows twice.
    for query, twice in (("a", 1), ("b", 2)):
        for start, end in ((None, 10), (10, 30)):
            both = [reading("t", start, end, (end - (start or 0)) * (twice if start else 1)), reading("u", 0, 3, 3)]
            sums.add(progress_of(query, report(sources=both, numInputRows=99), {4: 5}, {4: 1}))
    assert sums.figures() == {"rows_in": 30 + 6, "rows_out": 20, "dead_letters": 4}
    files = {"description": "FileStreamSource[file:/x]", "startOffset": None, "endOffset": '{"logOffset": 0}', "latestOffset": None}
    sums.add(progress_of("a", report(sources=[{**files, "numInputRows": 7}]), {}))
    assert sums.figures()["rows_in"] == 43


def test_of_many_partitions_those_with_the_largest_lag_are_shown() -> None:
    few = progress_of("q", report(), {})
    assert lag_summary([few]) == "behind: a-2 4, a-0 2 (of 3 partitions)"
    lags = {"endOffset": {"a": {}}, "latestOffset": {"a": {str(number): number for number in range(20)}}}
    many = lag_summary([progress_of("q", report(sources=[lags]), {})])
    assert many.startswith("behind: a-19 19, a-18 18,") and many.endswith(", and 7 more (of 20 partitions)")


def test_errors_of_brokers_and_workers_are_retryable_and_a_bad_record_is_not() -> None:
    away = "[STREAM_FAILED] ... Traceback (most recent call last):\n  File x\nottla.client.errors.MetadataTimedOut: no broker answered\n"
    assert is_retryable(away)
    assert is_retryable("Caused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)")
    assert is_retryable("\njava.io.IOException: Broken pipe\n\tat java.base/sun.nio.ch.FileDispatcherImpl.write0(Native Method)")
    assert not is_retryable("\njava.io.IOException: No space left on device\n")
    assert is_retryable("\nottla.wire.errors.NotLeaderOrFollower: the leader has moved\n")
    assert not is_retryable("\nottla.spark.positions.DataLoss: a-0 begins at 7\n")
    assert not is_retryable("[USER_RAISED_EXCEPTION] cannot decode the value of a-0 at offset 1")
    waits = backoffs_s()
    assert [next(waits) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]


def test_a_query_with_a_retryable_error_restarts_with_growing_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(foreground.time, "monotonic", lambda: now[0])  # type: ignore[attr-defined]
    starts: list[float] = []
    query = RunningQuery("sums", PlannedQuery("sums", "update", (), None), lambda: starts.append(now[0]))
    out, trouble = io.StringIO(), RetryState()

    def fails(*, retryable: bool = True) -> None:
        trouble.failed(QueryFailed("sums failed: no broker answered", query, retryable=retryable), JsonLines(out))

    for _ in range(3):
        fails()
        for _ in range(50):
            trouble.restart_due()
            now[0] += 0.1
    assert [round(at, 0) for at in starts] == [1, 7, 14], "after 1, 2 and 4 seconds"
    events = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(one["event"], one["query"], one["after_s"]) for one in events] == [("retrying", "sums", wait) for wait in (1, 2, 4)]
    trouble.succeeded("sums")
    fails()
    assert trouble.waiting["sums"][1] == now[0] + 1, "a successful batch resets the backoff"
    now[0] += foreground.RETRY_TIMEOUT_S + 1  # type: ignore[attr-defined]
    with pytest.raises(QueryFailed):
        fails()
    with pytest.raises(QueryFailed):
        RetryState().failed(QueryFailed("a record is gone", query, retryable=False), JsonLines(out))


class FailsBetweenChecks:
    """A pipeline of one query that runs at the first check, has failed at the second, and ends successfully after a restart."""

    def __init__(self) -> None:
        self.query = RunningQuery("sums", PlannedQuery("sums", "update", (), None), self._launch)
        self._failures = iter([None, QueryFailed("sums failed: no broker answered", self.query, retryable=True)])
        self._active = iter([True])
        self.launched = 0
        self.pipeline = SimpleNamespace(name="sums")

    @property
    def active(self) -> bool:
        return next(self._active, False)

    def reports(self) -> list[Any]:
        failure = next(self._failures, None)
        if failure is not None:
            raise failure
        return []

    def _launch(self) -> None:
        self.launched += 1


class NoLock:
    def beat(self, pipeline: str) -> None:
        """No process checks the lock."""


def test_the_only_query_is_restarted_after_a_failure_between_two_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr(foreground.time, "monotonic", lambda: float(next(clock)))  # type: ignore[attr-defined]
    monkeypatch.setattr(foreground, "POLL_INTERVAL_S", 0)
    running, out = FailsBetweenChecks(), io.StringIO()
    foreground._watch(running, RetryState(), lambda _: None, JsonLines(out), threading.Event(), NoLock())  # type: ignore[arg-type]
    assert running.launched == 1
    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == ["retrying"]
