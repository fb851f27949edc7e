"""Queries whose Python process is gone, without a session of Spark."""

from typing import Any, cast

from ottla.spark.pipeline.query import LOSSES_MAX, PlannedQuery, RunningQuery

LOST = RuntimeError("[STREAM_FAILED] Query terminated with exception: Python worker failed to connect back.")


def running() -> tuple[RunningQuery, list[str]]:
    """A query, and the queries that were begun in its place."""
    begun: list[str] = []

    def begin() -> str:
        begun.append(f"query {len(begun) + 1}")
        return begun[-1]

    return RunningQuery("q", cast("PlannedQuery", None), "query 0", begin=begin), begun


def test_a_query_begins_again_when_its_python_process_is_gone() -> None:
    query, begun = running()
    assert query.went_on_after(LOST)
    assert query.query == "query 1" and begun == ["query 1"]


def test_the_reason_may_be_in_what_caused_the_error() -> None:
    class Failed(RuntimeError):
        _stackTrace = "java.io.EOFException\n\tat java.io.DataInputStream.readInt"

    query, _ = running()
    assert query.went_on_after(Failed("[STREAM_FAILED] Query terminated with exception: null"))


def test_any_other_error_ends_it() -> None:
    query, begun = running()
    assert not query.went_on_after(RuntimeError("column n is not there"))
    assert begun == []


def test_a_query_that_loses_its_process_again_and_again_ends() -> None:
    query, begun = running()
    assert all(query.went_on_after(LOST) for _ in range(LOSSES_MAX))
    assert not query.went_on_after(LOST)
    assert len(begun) == LOSSES_MAX


def test_a_batch_between_losses_makes_them_count_anew() -> None:
    query, _ = running()
    for number in range(3 * LOSSES_MAX):
        query.reported = f"2026-05-17T10:00:{number:02}.000Z"
        outcome: Any = query.went_on_after(LOST)
        assert outcome
