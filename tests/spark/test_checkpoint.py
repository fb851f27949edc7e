"""A checkpoint's directory without Spark: batches, offsets, lock, compatibility with a changed file, reset."""

import json
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ottla.base.ids import TopicPartition
from ottla.cli.groups import pipeline as command
from ottla.spark.pipeline import checkpoint, checkpoint_compatibility
from ottla.spark.pipeline.checkpoint import CheckpointNotes, InUse, checkpoint_lock, holder, queries
from ottla.spark.pipeline.config.file import parse
from ottla.spark.pipeline.config.model import Pipeline
from ottla.spark.pipeline.config.toml_table import PipelineError
from ottla.spark.pipeline.reset import ResetError, parse_start, plan_reset, with_reset_start
from ottla.spark.pipeline.status import pipeline_status, status_text

FILE = """
name = "visits"
bootstrap = "127.0.0.1:1"
checkpoint = "${dir}/state"
[source]
topics = ["a", "b"]
[[step]]
name = "sums"
sql = '''
SELECT user, count(*) AS n FROM records
GROUP BY user -- of each
'''
[[sink]]
type = "delta"
path = "${dir}/table"
mode = "merge"
keys = ["user"]
"""


def pipeline_of(text: str, directory: Path) -> Pipeline:
    (directory / "visits.toml").write_text(text.replace("${dir}", str(directory)))
    return parse(text, directory / "visits.toml", {"dir": str(directory)})


def write_checkpoint(directory: Path, query: str, ends: list[dict[str, Any]], *, unfinished: int = 0, partitions: str = "2") -> None:
    """A checkpoint as Spark writes it: one batch per end; the last `unfinished` of them are only planned."""
    place = directory / "state" / query
    for part in ("offsets", "commits", "state"):
        (place / part).mkdir(parents=True)
    (place / "metadata").write_text('{"id":"5f0c"}')
    for number, end in enumerate(ends):
        conf = {"spark.sql.shuffle.partitions": partitions, checkpoint_compatibility.STORE: checkpoint_compatibility.DEFAULT_STORE}
        settings = {"batchWatermarkMs": 0, "batchTimestampMs": 1_795_000_000_000, "conf": conf}
        (place / "offsets" / str(number)).write_text(f"v1\n{json.dumps(settings)}\n{json.dumps(end)}")
        if number < len(ends) - unfinished:
            (place / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def noted(pipeline: Pipeline, spark: str = "4.3.0", state: tuple[str, ...] = ("Aggregate [user]",)) -> None:
    notes = CheckpointNotes(Path(pipeline.checkpoint))
    content = {**checkpoint_compatibility.file_dependencies(pipeline, "sums", "update"), "state": list(state), "spark": spark}
    notes.begin("sums-update", content, [{"type": "delta", "path": "t"}])
    notes.save()


def test_status_reports_the_last_finished_and_the_unfinished_batch(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "sums-update", [{"a": {"0": 3}}, {"a": {"0": 5, "1": 2}}, {"a": {"0": 9, "1": 9}}], unfinished=1)
    (state,) = queries(tmp_path / "state")
    assert (state.name, state.query_id, state.batch, state.planned) == ("sums-update", "5f0c", 1, 2)
    assert state.offsets == {TopicPartition("a", 0): 5, TopicPartition("a", 1): 2}
    assert state.at_ms == 1_795_000_000_000


def test_status_works_without_brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.spark.pipeline.status.BROKERS_TIMEOUT_MS", 100)
    pipeline = pipeline_of(FILE, tmp_path)
    write_checkpoint(tmp_path, "sums-update", [{"a": {"0": 3}}])
    noted(pipeline)
    notes = CheckpointNotes(tmp_path / "state")
    for batch in (0, 0):
        notes.batch("sums-update", {"batch": batch, "rows_in": 4, "rows_out": 2, "dead_letters": 1, "state_rows": 7})
    notes.save()
    reported = pipeline_status(pipeline)
    assert (reported["state"], reported["queries"][0]["lag"]) == ("stopped", None)
    assert reported["brokers"].startswith("127.0.0.1:1: ")
    assert {figure: reported["queries"][0][figure] for figure in ("rows_in", "rows_out", "dead_letters", "state_rows")} == {
        "rows_in": 4,
        "rows_out": 2,
        "dead_letters": 1,
        "state_rows": 7,
    }, "a batch that was run again counts once"
    assert reported["queries"][0]["sources"] == {"a": {"0": {"offset": 3, "end": None, "lag": None}}}
    assert "4 rows in, 2 out, 1 dead letters, 7 rows of state" in status_text(reported)


def test_status_has_the_watermark_of_the_last_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.spark.pipeline.status.BROKERS_TIMEOUT_MS", 100)
    pipeline = pipeline_of(FILE, tmp_path)
    write_checkpoint(tmp_path, "sums-update", [{"a": {"0": 3}}])
    noted(pipeline)
    assert pipeline_status(pipeline)["queries"][0]["watermark"] is None
    notes = CheckpointNotes(tmp_path / "state")
    for batch, mark in enumerate(("2026-05-17T09:59:50.000Z", "2026-05-17T10:00:20.000Z")):
        notes.batch("sums-update", {"batch": batch, "rows_in": 4, "rows_out": 2, "dead_letters": 0, "watermark": mark})
    notes.save()
    reported = pipeline_status(pipeline)
    assert reported["queries"][0]["watermark"] == "2026-05-17T10:00:20.000Z"
    assert ", watermark 2026-05-17T10:00:20.000Z" in status_text(reported)


def _hold(directory: Path, ready: Any) -> None:
    with checkpoint_lock(directory):
        ready.set()
        signal.pause()


def test_a_second_run_of_a_checkpoint_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    other = context.Process(target=_hold, args=(tmp_path / "state", ready))
    other.start()
    try:
        assert ready.wait(60)
        there = holder(tmp_path / "state")
        assert there is not None and (there.running, there.pid) == (True, other.pid)
        with pytest.raises(InUse, match=f"is used by process {other.pid}, since"), checkpoint_lock(tmp_path / "state"):
            pass
        with pytest.raises(ResetError, match=f"visits is running .process {other.pid}"):
            plan_reset(pipeline_of(FILE, tmp_path), None)
    finally:
        assert other.pid is not None
        os.kill(other.pid, signal.SIGKILL)
        other.join()
    gone = holder(tmp_path / "state")
    assert gone is not None and not gone.running, "the lock is released with the process, also after kill -9"
    with checkpoint_lock(tmp_path / "state"):
        mine = holder(tmp_path / "state")
        assert mine is not None and (mine.running, mine.pid) == (True, os.getpid())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("count(*) AS n", "count(*) AS records"),
        ("GROUP BY user -- of each", "group  by USER"),
        ('topics = ["a", "b"]', 'topics = ["a", "c", "b"]'),
        ("[[sink]]", '[[sink]]\ntype = "console"\n[[sink]]'),
    ],
)
def test_a_change_that_does_not_affect_state_is_compatible(tmp_path: Path, before: str, after: str) -> None:
    pipeline = pipeline_of(FILE, tmp_path)
    write_checkpoint(tmp_path, "sums-update", [{"a": {"0": 3}}])
    noted(pipeline)
    reported = checkpoint_compatibility.require_compatible(pipeline_of(FILE.replace(before, after), tmp_path), tmp_path / "state", "4.3.0")
    assert reported == (["c is new in records and read from its beginning"] if '"c"' in after else [])


@pytest.mark.parametrize(
    ("before", "after", "key", "line", "sentence"),
    [
        ("GROUP BY user", "GROUP BY user, _topic", "step[0].sql", 11, "groups by user, _topic and grouped by user before"),
        ('topics = ["a", "b"]', 'topics = ["a"]', "source", 5, "records reads a and records read a,b before"),
        ('topics = ["a", "b"]', 'pattern = "a|b"', "source", 5, "records reads a|b and records read a,b before"),
        ("[[sink]]", '[spark]\n"sql.shuffle.partitions" = 7\n[[sink]]', "spark.sql.shuffle.partitions", 14, "kept in 2 parts"),
        (
            "[[sink]]",
            '[spark]\n"sql.streaming.stateStore.providerClass" = "a.RocksDB"\n[[sink]]',
            checkpoint_compatibility.STORE,
            14,
            "kept by org",
        ),
    ],
)
def test_an_incompatible_change_is_refused_with_advice(tmp_path: Path, before: str, after: str, key: str, line: int, sentence: str) -> None:
    pipeline = pipeline_of(FILE, tmp_path)
    write_checkpoint(tmp_path, "sums-update", [{"a": {"0": 3}}])
    noted(pipeline)
    with pytest.raises(PipelineError) as refused:
        checkpoint_compatibility.require_compatible(pipeline_of(FILE.replace(before, after), tmp_path), tmp_path / "state", "4.3.0")
    assert refused.value.key == key
    assert sentence in refused.value.problem and "ottla pipeline reset" in refused.value.problem
    assert refused.value.where == f"{tmp_path}/visits.toml:{line}"


def test_a_checkpoint_of_a_newer_spark_is_refused(tmp_path: Path) -> None:
    pipeline = pipeline_of(FILE, tmp_path)
    write_checkpoint(tmp_path, "sums-update", [{"a": {"0": 3}}])
    noted(pipeline, spark="4.4.1")
    with pytest.raises(PipelineError, match=r"was written by Spark 4\.4\.1, and this is 4\.3\.0, which is older"):
        checkpoint_compatibility.require_compatible(pipeline, tmp_path / "state", "4.3.0")


def test_records_to_which_old_and_new_rules_apply_are_reported(tmp_path: Path) -> None:
    rule = '[dead_letters]\ntopic = "dead"\n[[rule]]\nname = "known"\ncheck = "user IS NOT NULL"\n'
    pipeline = pipeline_of(FILE + rule, tmp_path)
    write_checkpoint(tmp_path, "sums-update", [{"a": {"0": 3}, "b": {"0": 4}}])
    write_checkpoint(tmp_path, "records-rejects", [{"a": {"0": 5}, "b": {"0": 4}}])
    noted(pipeline)
    notes = CheckpointNotes(Path(pipeline.checkpoint))
    notes.begin("records-rejects", {**checkpoint_compatibility.file_dependencies(pipeline, "records", "rejects"), "spark": "4.3.0"}, [])
    notes.save()
    assert checkpoint_compatibility.require_compatible(pipeline, tmp_path / "state", "4.3.0") == []
    (reported,) = checkpoint_compatibility.require_compatible(
        pipeline_of(FILE + rule.replace("user IS", "length(user) IS"), tmp_path), tmp_path / "state", "4.3.0"
    )
    assert (
        "the rules for rejected rows of records have changed, and records-rejects and sums-update had read a-0 up to 5 and 3: " in reported
    )


def test_reset_reports_its_effects_and_removes_the_checkpoints(tmp_path: Path) -> None:
    pipeline = pipeline_of(FILE, tmp_path)
    write_checkpoint(tmp_path, "sums-update", [{"a": {"0": 3}}])
    noted(pipeline)
    arguments = ["reset", str(pipeline.file), "--to", "2026-05-17T10:00:00Z"]
    shown_only = CliRunner().invoke(command, [*arguments, "--dry-run"])
    assert "sums-update: forgets batch 0 and before, which read a-0 up to 3" in shown_only.output
    assert f"table {tmp_path}/table keeps its rows; rows that are read again replace rows with the same keys" in shown_only.output
    assert CliRunner().invoke(command, arguments).exit_code == 2, "it was not confirmed"
    assert queries(tmp_path / "state")
    done = CliRunner().invoke(command, [*arguments, "--yes"])
    assert done.exit_code == 0, done.output
    assert not queries(tmp_path / "state") and not checkpoint.read_notes(tmp_path / "state")
    options = with_reset_start(pipeline, pipeline.sources[0], {"subscribe": "a", "startingOffsets": "earliest"})
    assert options == {"subscribe": "a", "startingTimestamp": "1779012000000", "startingOffsetsByTimestampStrategy": "latest"}


def test_a_start_position_is_a_name_a_time_or_offsets() -> None:
    assert parse_start("latest") == {"startingOffsets": "latest"}
    assert parse_start('{"a": {"0": 5}}') == {"offsets": '{"a": {"0": 5}}'}
    assert parse_start("2026-05-17 12:00+02:00")["startingTimestamp"] == "1779012000000"
    for wrong in ("soon", '{"a": 5}'):
        with pytest.raises(ResetError):
            parse_start(wrong)


def test_an_unwritable_checkpoint_is_an_error_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unfinished = tmp_path / ".pipeline.json.unfinished"
    unfinished.symlink_to("/dev/full")

    def started(pipeline: Pipeline, *, output: str) -> None:
        notes = CheckpointNotes(tmp_path)
        notes.begin("records-append", {}, [])
        notes.save()

    monkeypatch.setattr("ottla.spark.pipeline.foreground.run_until_stopped", started)
    file = tmp_path / "p.toml"
    file.write_text('bootstrap = "h:1"\ncheckpoint = "c"\n[source]\ntopic = "t"\n[[sink]]\ntype = "console"\n')
    done = CliRunner().invoke(command, ["run", str(file)])
    sentence = f"[Errno 28] No space left on device: '{unfinished}'; free some space and start it again: it continues where it stopped"
    assert (done.exit_code, done.output) == (1, f"ottla: {file}: {sentence}\n")
