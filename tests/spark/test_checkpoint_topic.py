"""A checkpoint in a topic, without Spark: files and records, what another machine gets, fencing, limits, and the commands that read it."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ottla import Admin, NewTopic, Producer
from ottla.cli.groups import pipeline as command
from ottla.client.admin.results import Resource
from ottla.client.producer.transaction_state import ProducerTransactionState
from ottla.spark.pipeline import checkpoint_topic
from ottla.spark.pipeline.checkpoint import checkpoint_lock, holder, queries
from ottla.spark.pipeline.checkpoint_errors import CheckpointTakenOver, CheckpointUnavailable
from ottla.spark.pipeline.checkpoint_records import Files, InvalidRecord, LocalFiles, differences, key_of, replay, restore
from ottla.spark.pipeline.checkpoint_topic import (
    CheckpointTopic,
    holding,
    read_files,
    to_read,
    transactional_id,
)
from ottla.spark.pipeline.config.file import parse
from ottla.spark.pipeline.config.model import CHECKPOINTS_TOPIC, Pipeline
from ottla.spark.pipeline.config.toml_table import PipelineError
from ottla.spark.pipeline.foreground import Held
from ottla.spark.pipeline.reset import ResetError, apply_reset, plan_reset
from ottla.spark.pipeline.run import QueryFailed
from ottla.spark.pipeline.status import pipeline_status
from ottla.testing import broker
from ottla.wire.errors import RequestTimedOut

FILE = """
name = "${name:-visits}"
bootstrap = "${bootstrap}"
checkpoint = "${checkpoint:-ottla:}"
[source]
topic = "visits"
[[step]]
name = "chosen"
sql = "${sql:-SELECT value FROM records WHERE value <> ''}"
[[sink]]
type = "delta"
path = "table"
"""


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """A broker in this process."""
    with broker() as serving:
        yield serving.bootstrap_servers


def pipeline_in(directory: Path, bootstrap: str, name: str, **variables: str) -> Pipeline:
    """A pipeline whose working copy is in `directory`, as on a machine of its own."""
    pipeline = parse(FILE, directory / "p.toml", {"bootstrap": bootstrap, "name": name, **variables})
    return replace(pipeline, checkpoint=str(directory / "copy"))


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, "it does not hold in 30 s"
        time.sleep(0.01)


def plan_batch(pipeline: Pipeline, number: int, end: int) -> None:
    """Writes what Spark writes when it plans a batch."""
    query = Path(pipeline.checkpoint) / "chosen-append"
    for part in ("offsets", "commits"):
        (query / part).mkdir(parents=True, exist_ok=True)
    (query / "metadata").write_text('{"id":"5f0c"}')
    settings = {"batchWatermarkMs": 0, "batchTimestampMs": 1_795_000_000_000, "conf": {}}
    (query / "offsets" / str(number)).write_text(f"v1\n{json.dumps(settings)}\n{json.dumps({'visits': {'0': end}})}")
    (query / "offsets" / f".{number}.crc").write_text("x")


def finish_batch(pipeline: Pipeline, number: int) -> None:
    (Path(pipeline.checkpoint) / "chosen-append" / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')


# -- files and records


def test_records_of_other_pipelines_and_foreign_records_are_ignored() -> None:
    files: Files = {}
    for key in (key_of("other", "a/offsets/0"), None, b"\xff", b"7", b'["visits"]', b'["visits",1]', b'{"visits":"x"}'):
        replay(files, "visits", key, b"1")
    assert files == {}
    replay(files, "visits", key_of("visits", "a/offsets/0"), b"1")
    replay(files, "visits", key_of("visits", "a/offsets/1"), b"2")
    replay(files, "visits", key_of("visits", "a/offsets/0"), None)
    assert files == {"a/offsets/1": b"2"}


@pytest.mark.parametrize("path", ["../p.toml", "/etc/x", "a//b", "a/./b", "", "a\\..\\b", "C:/x"])
def test_a_record_cannot_write_outside_of_the_checkpoint(path: str) -> None:
    with pytest.raises(InvalidRecord, match="names no file"):
        replay({}, "visits", key_of("visits", path), b"1")


def test_state_hidden_files_and_the_files_of_this_machine_are_not_copied(tmp_path: Path) -> None:
    kept = ("q/metadata", "q/offsets/0", "q/commits/0", "q/sources/0/1", "pipeline.json", "start.json")
    for path in (*kept, "q/offsets/.1.tmp", ".hidden", "q/state/0/0/1.delta", "spark.log", "pipeline.lock"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    found = LocalFiles(tmp_path).read()
    assert sorted(found) == sorted(kept)
    assert next(iter(found)) == "q/offsets/0", "a planned batch is read before what Spark writes earlier"


def test_differences_turn_what_is_written_into_what_is_local() -> None:
    written = {"same": b"1", "old": b"1", "gone": b"1", "pipeline.lock": b"{}"}
    assert differences({"same": b"1", "old": b"2", "new": b"3"}, written) == {"old": b"2", "new": b"3", "gone": None}


def test_restored_files_replace_those_of_an_earlier_run(tmp_path: Path) -> None:
    for path in ("spark.log", "pipeline.lock", "pipeline.json", "q/offsets/9"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("old")
    restore({"q/offsets/1": b"new", "pipeline.lock": b"of another machine"}, tmp_path)
    assert LocalFiles(tmp_path).read() == {"q/offsets/1": b"new"}
    assert (tmp_path / "pipeline.lock").read_text() == (tmp_path / "spark.log").read_text() == "old"


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    local = LocalFiles(tmp_path)
    (tmp_path / "pipeline.json").write_text("1")
    assert local.read() == {"pipeline.json": b"1"}
    (tmp_path / "new").write_text("22")
    (tmp_path / "new").rename(tmp_path / "pipeline.json")
    assert local.read() == {"pipeline.json": b"22"}


# -- the topic


def test_another_machine_gets_the_planned_and_the_finished_batches(bootstrap: str, tmp_path: Path) -> None:
    one, two = (pipeline_in(tmp_path / machine, bootstrap, "moved") for machine in ("one", "two"))
    first = CheckpointTopic(one)
    first.take_over()
    assert first.is_empty
    plan_batch(one, 0, 10)
    first.save()
    finish_batch(one, 0)
    plan_batch(one, 1, 25)
    first.save()
    # The first machine is gone: it does not say that batch 1 is finished.
    finish_batch(one, 1)
    with holding(two) as second:
        assert second is not None and not second.is_empty
        (state,) = queries(Path(two.checkpoint))
        assert (state.query_id, state.batch, state.planned, state.offsets) == ("5f0c", 0, 1, {("visits", 0): 10})
        assert not list(Path(two.checkpoint).glob("*/*/.*")), "no checksum, which would be of another file"


def test_removed_batches_are_removed_in_the_topic_too(bootstrap: str, tmp_path: Path) -> None:
    pipeline = pipeline_in(tmp_path, bootstrap, "removed")
    with holding(pipeline) as topic:
        assert topic is not None
        for number in range(3):
            plan_batch(pipeline, number, number)
        topic.save()
        (Path(pipeline.checkpoint) / "chosen-append/offsets/0").unlink()
        topic.save()
    assert sorted(path for path in read_files(pipeline) if "offsets" in path) == ["chosen-append/offsets/1", "chosen-append/offsets/2"]


def test_a_process_that_was_taken_over_can_note_no_batch(bootstrap: str, tmp_path: Path) -> None:
    one, two = (pipeline_in(tmp_path / machine, bootstrap, "fenced") for machine in ("one", "two"))
    first, second = CheckpointTopic(one), CheckpointTopic(two)
    first.take_over()
    plan_batch(one, 0, 10)
    first.save()
    second.take_over()
    plan_batch(one, 1, 20)
    with pytest.raises(CheckpointTakenOver, match=r"ottla:__ottla_checkpoints of fenced was taken over by process \d+ on "):
        first.save()
    assert "chosen-append/offsets/1" not in read_files(two)
    plan_batch(two, 1, 15)
    second.save()
    first.close()
    assert b'"0": 15' in read_files(two)["chosen-append/offsets/1"], "what the first does at its end changes nothing"
    second.close()


def test_a_run_that_was_taken_over_ends_between_batches_too(bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_topic, "BEAT_S", 0.0)
    monkeypatch.setattr(checkpoint_topic, "COPY_INTERVAL_S", 0.0)
    one, two = (pipeline_in(tmp_path / machine, bootstrap, "idle") for machine in ("one", "two"))
    with checkpoint_lock(Path(one.checkpoint)) as lock, holding(one) as topic:
        assert topic is not None
        run = Held(lock, topic)
        run.beat("idle")
        with holding(two), pytest.raises(QueryFailed, match=r"idle: .* was taken over by process"):
            run.beat("idle")


def test_a_process_whose_transaction_was_aborted_goes_on_if_nobody_took_over(bootstrap: str, tmp_path: Path) -> None:
    pipeline = pipeline_in(tmp_path, bootstrap, "aborted")
    with holding(pipeline) as topic:
        assert topic is not None
        # As a coordinator does after the timeout of a transaction: the epoch of the producer is incremented.
        with Producer(bootstrap_servers=bootstrap, transactional_id=transactional_id("aborted")) as other:
            other.init_transactions()
        plan_batch(pipeline, 0, 10)
        topic.save()
        assert "chosen-append/offsets/0" in read_files(pipeline)


def test_a_process_goes_on_after_a_commit_whose_answer_came_late(bootstrap: str, tmp_path: Path) -> None:
    pipeline = pipeline_in(tmp_path, bootstrap, "late")
    with holding(pipeline) as topic:
        assert topic is not None and topic._producer is not None
        transactions = topic._producer.transactions
        limit_ms, transactions._options.max_block_ms = transactions._options.max_block_ms, 0
        plan_batch(pipeline, 0, 10)
        with pytest.raises(RequestTimedOut):
            topic.save()
        transactions._options.max_block_ms = limit_ms
        until(lambda: transactions.machine.state is ProducerTransactionState.READY)
        plan_batch(pipeline, 1, 20)
        topic.save()
        assert {"chosen-append/offsets/0", "chosen-append/offsets/1"} <= read_files(pipeline).keys()


def test_a_process_whose_producer_was_fenced_asks_again_who_owns_the_checkpoint_after_a_timeout(bootstrap: str, tmp_path: Path) -> None:
    pipeline = pipeline_in(tmp_path, bootstrap, "asks-again")
    with holding(pipeline) as topic:
        assert topic is not None
        with Producer(bootstrap_servers=bootstrap, transactional_id=transactional_id("asks-again")) as other:
            other.init_transactions()
        plan_batch(pipeline, 0, 10)
        topic._pipeline = replace(pipeline, kafka={"kafka.max.block.ms": "0"})
        with pytest.raises(RequestTimedOut, match="init_transactions"):
            topic.save()
        topic._pipeline = pipeline
        topic.save()
        assert "chosen-append/offsets/0" in read_files(pipeline)


def test_pipelines_of_the_same_name_with_checkpoints_in_two_topics_do_not_fence_each_other(bootstrap: str, tmp_path: Path) -> None:
    one = pipeline_in(tmp_path / "one", bootstrap, "same")
    two = pipeline_in(tmp_path / "two", bootstrap, "same", checkpoint="ottla:of-tests")
    with holding(one) as first:
        assert first is not None
        producer = first._producer
        with holding(two):
            plan_batch(one, 0, 10)
            first.save()
            assert first._producer is producer, "it was not fenced"
        assert "chosen-append/offsets/0" not in read_files(two)


def test_a_file_larger_than_a_record_is_an_error_that_names_it(bootstrap: str, tmp_path: Path) -> None:
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(NewTopic("small", 1, configs={"cleanup.policy": "compact", "max.message.bytes": "2000"}))
    pipeline = pipeline_in(tmp_path, bootstrap, "large", checkpoint="ottla:small")
    with holding(pipeline) as topic:
        assert topic is not None
        (Path(pipeline.checkpoint) / "pipeline.json").write_text("x" * 1900)
        with pytest.raises(
            CheckpointUnavailable, match=r"pipeline.json of the checkpoint has 1,900 bytes.* 2,000: raise max.message.bytes"
        ):
            topic.save()
        (Path(pipeline.checkpoint) / "pipeline.json").write_text("x" * 1700)
        topic.save()


def test_a_topic_that_deletes_records_is_refused(bootstrap: str, tmp_path: Path) -> None:
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(NewTopic("deleting", 1))
    with pytest.raises(CheckpointUnavailable, match=r"deleting of the checkpoint has cleanup.policy=delete.*set it to compact"):
        CheckpointTopic(pipeline_in(tmp_path, bootstrap, "p", checkpoint="ottla:deleting")).take_over()


def test_the_topic_is_created_compacted(bootstrap: str, tmp_path: Path) -> None:
    with holding(pipeline_in(tmp_path, bootstrap, "p", checkpoint="ottla:mine")):
        pass
    with Admin(bootstrap_servers=bootstrap) as admin:
        assert admin.describe_config(Resource.topic("mine"), names=["cleanup.policy"])["cleanup.policy"].value == "compact"
        assert len(admin.describe_topic("mine").partitions) == 1


def test_unreachable_brokers_are_an_error_that_names_the_checkpoint(tmp_path: Path) -> None:
    pipeline = pipeline_in(tmp_path, "127.0.0.1:1", "p")
    impatient = {"kafka.default.api.timeout.ms": "300", "kafka.request.timeout.ms": "300"}
    with (
        pytest.raises(CheckpointUnavailable, match=r"the checkpoint ottla:__ottla_checkpoints of p cannot be used: "),
        to_read(replace(pipeline, kafka=impatient)),
    ):
        pass


# -- commands


def test_status_shows_what_the_topic_has_from_any_machine(bootstrap: str, tmp_path: Path) -> None:
    one, two = (pipeline_in(tmp_path / machine, bootstrap, "shown") for machine in ("one", "two"))
    assert pipeline_status(two)["state"] == "new"
    with holding(one) as topic:
        assert topic is not None
        plan_batch(one, 0, 10)
        finish_batch(one, 0)
        topic.save()
        status = pipeline_status(two)
        assert (status["state"], status["checkpoint"], status["queries"][0]["batch"]) == ("running", "ottla:__ottla_checkpoints", 0)
        with pytest.raises(ResetError, match=r"shown is running \(process \d+"):
            plan_reset(two, None)
    assert pipeline_status(two)["state"] == "stopped"
    assert not Path(two.checkpoint).exists()


def test_a_process_without_heartbeats_is_stopped(bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = pipeline_in(tmp_path, bootstrap, "silent")
    killed = CheckpointTopic(pipeline)
    killed.take_over()
    assert pipeline_status(pipeline)["state"] == "running" or not queries(Path(pipeline.checkpoint))
    with to_read(pipeline) as local:
        found = holder(Path(local.checkpoint), copied=True)
        assert found is not None and found.running
        monkeypatch.setattr("ottla.spark.pipeline.checkpoint.BEAT_OLD_S", -1.0)
        found = holder(Path(local.checkpoint), copied=True)
        assert found is not None and not found.running
    monkeypatch.undo()
    killed.close()


def test_reset_removes_the_batches_in_the_topic(bootstrap: str, tmp_path: Path) -> None:
    one, two = (pipeline_in(tmp_path / machine, bootstrap, "reset") for machine in ("one", "two"))
    with holding(one) as topic:
        assert topic is not None
        plan_batch(one, 0, 10)
        topic.save()
    plan = plan_reset(two, "earliest")
    assert plan.sentences[0].startswith("chosen-append: forgets batch 0")
    apply_reset(two, plan)
    assert sorted(read_files(one)) == ["pipeline.lock", "start.json"]


def test_heartbeats_are_written_when_due(bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = pipeline_in(tmp_path, bootstrap, "beating")

    def beat() -> float:
        return float(json.loads(read_files(pipeline)["pipeline.lock"])["beat"])

    with holding(pipeline) as topic:
        assert topic is not None
        first = beat()
        topic.keep()
        assert beat() == first
        monkeypatch.setattr(checkpoint_topic, "BEAT_S", 0.0)
        monkeypatch.setattr(checkpoint_topic, "COPY_INTERVAL_S", 0.0)
        topic.keep()
        assert beat() > first


def invoke(tmp_path: Path, called: str, *arguments: str, **variables: str) -> Any:
    file = tmp_path / "p.toml"
    file.write_text(FILE)
    filled = [part for key, value in variables.items() for part in ("--var", f"{key}={value}")]
    return CliRunner().invoke(command, [called, str(file), *filled, *arguments])


def test_commands_without_a_broker_say_that_they_do_not_compare(tmp_path: Path) -> None:
    done = invoke(tmp_path, "validate", bootstrap="127.0.0.1:1")
    assert done.exit_code == 0, done.output
    assert "the checkpoint ottla:__ottla_checkpoints is compared at the start, which reads it" in done.output
    plan = invoke(tmp_path, "plan", "-o", "json", bootstrap="127.0.0.1:1", checkpoint="ottla:mine")
    assert json.loads(plan.stdout)["checkpoint"] == "ottla:mine"


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("SELECT value, count(*) AS n FROM records GROUP BY value", "aggregate"),
        ("SELECT a.value FROM records a JOIN records b ON a.key = b.key", None),
        ("SELECT upper(value) AS value FROM records", None),
    ],
)
def test_validate_refuses_what_certainly_keeps_state(tmp_path: Path, sql: str, kind: str | None) -> None:
    done = invoke(tmp_path, "validate", bootstrap="127.0.0.1:1", sql=sql)
    if kind is None:
        assert "keeps state" not in done.output
    else:
        assert (done.exit_code, f"p.toml:4: checkpoint: chosen keeps state ({kind}), which is not in a topic" in done.output) == (2, True)


def test_backfill_of_a_pipeline_that_never_ran_says_so(bootstrap: str, tmp_path: Path) -> None:
    between = ("--from", "2026-01-01", "--to", "2026-01-02")
    done = invoke(tmp_path, "backfill", *between, bootstrap=bootstrap, name="unknown")
    assert (done.exit_code, "has no checkpoint in ottla:__ottla_checkpoints" in done.output) == (1, True), done.output


@pytest.mark.parametrize("checkpoint", ["ottla:a/b", "ottla://topic", "ottla:..", "ottla: x"])
def test_a_checkpoint_needs_a_topics_name(checkpoint: str) -> None:
    with pytest.raises(PipelineError, match=r"a topic (name holds|cannot be called) .*; write ottla:TOPIC"):
        parse(FILE, Path("p.toml"), {"bootstrap": "h:1", "checkpoint": checkpoint})


def test_a_name_that_is_no_directory_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"name: '\.\./x' names records and a directory"):
        parse(FILE, Path("p.toml"), {"bootstrap": "h:1", "name": "../x"})


def test_the_working_copy_is_below_the_topics_name() -> None:
    pipeline = parse(FILE, Path("p.toml"), {"bootstrap": "h:1"})
    assert (pipeline.checkpoint, pipeline.checkpoint_topic) == (f".ottla/{CHECKPOINTS_TOPIC}/visits", CHECKPOINTS_TOPIC)
