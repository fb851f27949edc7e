"""A checkpoint at a URL, without Spark: what the file accepts, what a start reads, and how two processes are kept apart."""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ottla.cli.groups import pipeline as command
from ottla.spark.pipeline import checkpoint_url
from ottla.spark.pipeline.checkpoint import LOCK, NOTES, START, InUse, checkpoint_lock, holder, queries, read_notes
from ottla.spark.pipeline.checkpoint_errors import CheckpointTakenOver, CheckpointUnavailable, CheckpointUnreachable
from ottla.spark.pipeline.checkpoint_url import OWNER, CheckpointUrl, read_part, this_machine
from ottla.spark.pipeline.config.file import parse
from ottla.spark.pipeline.config.model import Pipeline
from ottla.spark.pipeline.config.spark import hidden, secrets_in
from ottla.spark.pipeline.config.toml_table import PipelineError
from ottla.spark.pipeline.foreground import Held
from ottla.spark.pipeline.hadoop_files import FilesUnreachable, FilesUnusable, cause
from ottla.spark.pipeline.retryable_errors import is_retryable
from ottla.spark.pipeline.run import QueryFailed

FILE = """
name = "${name:-visits}"
bootstrap = "127.0.0.1:1"
checkpoint = "${checkpoint:-s3a://bucket/visits}"
[source]
topic = "visits"
[[step]]
name = "chosen"
sql = "SELECT value FROM records"
[[sink]]
type = "delta"
path = "table"
"""
PLANNED = 'v1\n{{"batchTimestampMs": 1000}}\n{{"visits": {{"0": {}}}}}'


class MemoryFiles:
    """Files of a store, by name."""

    def __init__(self, **files: str) -> None:
        self.files = {name: content.encode() for name, content in files.items()}
        #: Raised by the next calls.
        self.error: OSError | None = None

    def read(self, name: str) -> bytes | None:
        if self.error is not None:
            raise self.error
        return self.files.get(name)

    def entries(self, name: str) -> dict[str, bool]:
        found = [one.removeprefix(f"{name}/" if name else "") for one in self.files if one.startswith(f"{name}/" if name else "")]
        return {one.partition("/")[0]: "/" in one for one in found}

    def write(self, name: str, data: bytes) -> None:
        if self.error is not None:
            raise self.error
        self.files[name] = data

    def remove(self, name: str) -> None:
        self.files = {one: data for one, data in self.files.items() if one != name and not one.startswith(f"{name}/")}


def pipeline_on(machine: Path, **variables: str) -> Pipeline:
    """The pipeline on a machine of its own."""
    return replace(parse(FILE, machine / "p.toml", variables), checkpoint=str(machine))


def at_url(machine: Path, files: MemoryFiles, wait: Callable[[float], bool | None] = lambda _: True) -> CheckpointUrl:
    """Waits at most once, and then gives up."""
    machine.mkdir(exist_ok=True)
    return CheckpointUrl(pipeline_on(machine), files, tell=lambda _: None, wait=wait)


def a_heartbeat(**more: Any) -> str:
    """Of a process on another machine that is alive."""
    return json.dumps({"pid": 7, "host": "other", "machine": "another", "since": 1.0, "beat": time.time(), **more})


# -- the file


@pytest.mark.parametrize(
    "url", ["s3a://bucket/a/b", "gs://bucket/a", "abfss://c@account.dfs.core.windows.net/a", "hdfs://host:8020/a", "hdfs:///a"]
)
def test_a_url_of_a_hadoop_file_system_is_a_checkpoint(url: str) -> None:
    pipeline = parse(FILE, Path("p.toml"), {"checkpoint": f"{url}/"})
    assert (pipeline.checkpoint_place, pipeline.checkpoint_url) == (url, url)
    assert pipeline.checkpoint.startswith(f".ottla/{url.partition(':')[0]}/visits-"), "the log and the copy are here"


def test_a_file_url_is_a_directory() -> None:
    assert parse(FILE, Path("p.toml"), {"checkpoint": "file:///data/visits"}).checkpoint_place == "/data/visits"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("s3://bucket/a", "do not know s3://; write s3a://BUCKET/PATH"),
        ("az://c/a", "do not know az://; write abfss://CONTAINER@ACCOUNT"),
        ("s3a://", "names no bucket; write s3a://BUCKET/PATH"),
        ("s3a://bucket/", "has no path; write s3a://bucket/PATH"),
        ("gs://bucket/a?b", "a URL with"),
    ],
)
def test_a_url_that_hadoop_cannot_use_is_refused_with_the_one_to_write(url: str, problem: str) -> None:
    with pytest.raises(PipelineError, match=r"p.toml:4: checkpoint: ") as refused:
        parse(FILE, Path("p.toml"), {"checkpoint": url})
    assert problem in str(refused.value)


@pytest.mark.parametrize("url", ["s3a://AKIA:hunter22@bucket/a", "s3a://hunter22@bucket/a", "abfss://c:hunter22@a.dfs.core.windows.net/a"])
def test_credentials_in_a_url_are_refused_and_not_shown(url: str) -> None:
    with pytest.raises(PipelineError, match="credentials do not belong into a URL") as refused:
        parse(FILE, Path("p.toml"), {"checkpoint": url})
    assert "hunter22" not in str(refused.value)


def test_packages_are_a_list_of_coordinates() -> None:
    text = FILE + '[spark]\npackages = ["org.apache.hadoop:hadoop-aws:${version}", "a:b:1"]\n'
    pipeline = parse(text, Path("p.toml"), {"version": "3.5.0"})
    assert pipeline.spark == {"spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.5.0,a:b:1"}


@pytest.mark.parametrize("packages", ['"a:b:1"', "[]", '["hadoop-aws"]', '["a:b:1"]\n"jars.packages" = "c:d:2"'])
def test_wrong_packages_are_refused(packages: str) -> None:
    with pytest.raises(PipelineError, match=r"spark\.packages: (expected|is given besides)"):
        parse(FILE + f"[spark]\npackages = {packages}\n", Path("p.toml"), {})


# -- what a start reads


def test_a_start_reads_ottlas_files_and_the_batches_that_count(tmp_path: Path) -> None:
    files = MemoryFiles(
        **{
            NOTES: '{"queries": {"chosen-append": {"total": {"rows_in": 5}}}}',
            START: '{"startingOffsets": "latest"}',
            "chosen-append/metadata": '{"id": "q"}',
            **{f"chosen-append/offsets/{number}": PLANNED.format(number * 10) for number in range(4)},
            **{f"chosen-append/commits/{number}": "v1\n{}" for number in range(3)},
            "chosen-append/state/0/0/1.delta": "much",
            "broken-append/offsets/0": PLANNED.format(1),
        }
    )
    assert {name for name in read_part(files) if "/offsets/" in name} == {"chosen-append/offsets/2", "chosen-append/offsets/3"}
    held = at_url(tmp_path / "one", files)
    held.take_over()
    assert not held.is_empty
    (state,) = queries(tmp_path / "one")
    assert (state.batch, state.planned, list(state.offsets.values()), state.stateful) == (2, 3, [20], True)
    assert read_notes(tmp_path / "one")["chosen-append"]["total"] == {"rows_in": 5}
    assert json.loads((tmp_path / "one" / START).read_text()) == {"startingOffsets": "latest"}


def test_the_first_start_is_empty_and_drops_an_older_copy(tmp_path: Path) -> None:
    (tmp_path / "old-append").mkdir()
    (tmp_path / "old-append" / "metadata").write_text('{"id": "q"}')
    held = at_url(tmp_path, MemoryFiles())
    held.take_over()
    assert held.is_empty and queries(tmp_path) == []


def test_notes_are_copied_after_a_while_and_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = MemoryFiles()
    held = at_url(tmp_path, files)
    held.take_over()
    (tmp_path / NOTES).write_text("{}")
    held.keep()
    assert files.files[NOTES] == b"{}"
    (tmp_path / NOTES).write_text('{"queries": {}}')
    held.keep()
    assert files.files[NOTES] == b"{}", "a second has not passed"
    held.close()
    assert files.files[NOTES] == b'{"queries": {}}'
    assert json.loads(files.files[LOCK])["ended"] is True


def test_a_reset_removes_queries_and_notes_and_keeps_the_chosen_position(tmp_path: Path) -> None:
    files = MemoryFiles(**{NOTES: "{}", "chosen-append/metadata": '{"id": "q"}', "chosen-append/offsets/0": PLANNED.format(3)})
    held = at_url(tmp_path, files)
    held.take_over()
    (tmp_path / START).write_text('{"startingOffsets": "earliest"}')
    held.forget(["chosen-append"])
    assert sorted(files.files) == sorted([LOCK, OWNER, START])


def test_files_of_interrupted_writes_are_removed(tmp_path: Path) -> None:
    files = MemoryFiles(**{"q/offsets/.0.1f.tmp": "", "q/offsets/0": "", "q/commits/.0.1f.tmp": ""})
    at_url(tmp_path, files).remove_partial_files("q")
    assert list(files.files) == ["q/offsets/0"]


# -- two processes


def test_a_process_that_was_taken_over_writes_no_further_batch(tmp_path: Path) -> None:
    files = MemoryFiles()
    one = at_url(tmp_path / "one", files)
    one.take_over()
    one.save()
    # It is stopped for so long that its heartbeat does not count any more.
    files.write(LOCK, a_heartbeat(beat=1.0).encode())
    two = at_url(tmp_path / "two", files)
    two.take_over()
    with pytest.raises(CheckpointTakenOver, match=rf"s3a://bucket/visits of visits was taken over by process {os.getpid()}"):
        one.save()
    before = dict(files.files)
    one.close()
    assert files.files == before, "it does not say that the new process has ended"
    two.save()


def test_a_run_that_was_taken_over_ends_between_batches_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_url, "BEAT_S", 0.0)
    monkeypatch.setattr(checkpoint_url, "COPY_INTERVAL_S", 0.0)
    files = MemoryFiles()
    with checkpoint_lock(tmp_path) as lock:
        held = at_url(tmp_path, files)
        held.take_over()
        run = Held(lock, held)
        run.beat("visits")
        files.write(OWNER, b'{"run": "other", "pid": 9, "host": "elsewhere"}')
        with pytest.raises(QueryFailed, match=r"visits: .* was taken over by process 9 on elsewhere"):
            run.beat("visits")


def test_a_start_is_refused_while_another_process_writes_heartbeats(tmp_path: Path) -> None:
    files = MemoryFiles(**{LOCK: a_heartbeat()})

    def wait(_: float) -> bool:
        files.write(LOCK, a_heartbeat(beat=time.time() + 5).encode())
        return False

    with pytest.raises(InUse, match=r"s3a://bucket/visits is used by process 7 on other; two processes would write batches twice"):
        at_url(tmp_path, files, wait).take_over()
    assert OWNER not in files.files, "it goes on undisturbed"


def test_a_start_waits_until_a_heartbeat_is_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, waits, clock = MemoryFiles(**{LOCK: a_heartbeat()}), [], [0.0]

    def wait(seconds: float) -> None:
        waits.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    at_url(tmp_path, files, wait).take_over()
    assert sum(waits) == 15


def test_a_start_that_waits_can_be_stopped(tmp_path: Path) -> None:
    with pytest.raises(CheckpointUnavailable, match="visits was stopped while it waited for process 7 on other"):
        at_url(tmp_path, MemoryFiles(**{LOCK: a_heartbeat()})).take_over()


@pytest.mark.parametrize(
    "why",
    [
        {"ended": True},
        {"beat": 1.0},
        # No process has this number: they are smaller.
        {"machine": this_machine(), "pid": 2**22 + 1},
    ],
)
def test_a_start_does_not_wait_for_a_process_that_has_ended(tmp_path: Path, why: dict[str, Any]) -> None:
    at_url(tmp_path, MemoryFiles(**{LOCK: a_heartbeat(**why)})).take_over()


def test_a_process_is_known_as_running_by_its_heartbeat(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text(a_heartbeat())
    seen = holder(tmp_path, copied=True)
    assert seen is not None and seen.running


# -- errors


def test_a_store_that_does_not_answer_is_tried_again(tmp_path: Path) -> None:
    files = MemoryFiles()
    held = at_url(tmp_path, files)
    held.take_over()
    files.error = FilesUnreachable("s3a://bucket/visits: no answer")
    held._copied_s = held._beat_s = 0.0
    held.keep()
    with pytest.raises(CheckpointUnreachable, match="the checkpoint s3a://bucket/visits of visits is not reached: ") as failed:
        held.save()
    assert is_retryable(f"{type(failed.value).__module__}.{type(failed.value).__name__}: {failed.value}")
    files.error = FilesUnusable("403")
    with pytest.raises(CheckpointUnavailable, match="cannot be used: 403") as refused:
        held.save()
    assert not is_retryable(f"{type(refused.value).__module__}.{type(refused.value).__name__}: {refused.value}")


@pytest.mark.parametrize(
    ("text", "short"),
    [
        (
            "org.apache.hadoop.fs.s3a.UnknownStoreException: `s3a://b/x/pipeline.owner': getFileStatus on s3a://b/x/pipeline.owner: "
            "software.amazon.awssdk.services.s3.model.NoSuchBucketException: The specified bucket does not exist (Service: S3, Status "
            "Code: 404, Request ID: b4) (SDK Attempt Count: 1):NoSuchBucket: The specified bucket does not exist (Service: S3, Status "
            "Code: 404, Request ID: b4) (SDK Attempt Count: 1)\nCaused by others",
            "The specified bucket does not exist (status 404)",
        ),
        ("java.io.IOException: Filesystem closed", "Filesystem closed"),
        ("java.net.ConnectException: Call From vm to localhost:1 failed", "Call From vm to localhost:1 failed"),
    ],
)
def test_an_error_of_java_is_one_sentence(text: str, short: str) -> None:
    assert cause(text) == short


def test_values_of_secret_settings_are_hidden() -> None:
    settings = {
        "spark.hadoop.fs.s3a.secret.key": "hunter22",
        "spark.hadoop.fs.azure.account.key.a.dfs.core.windows.net": "c2VjcmV0",
        "spark.hadoop.fs.s3a.endpoint": "http://127.0.0.1:9000",
    }
    assert hidden("hunter22 c2VjcmV0 at http://127.0.0.1:9000", secrets_in(settings)) == "*** *** at http://127.0.0.1:9000"


# -- commands


@contextmanager
def stored(files: MemoryFiles) -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_url, "StoreFiles", lambda _: files)
        yield patch


def test_status_and_a_dry_reset_read_an_object_store_without_java(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(
        FILE.replace('topic = "visits"', 'type = "files"\npath = "files"\nformat = "json"\nschema = "value STRING"')
    )
    files = MemoryFiles(
        **{
            LOCK: a_heartbeat(ended=True),
            "chosen-append/metadata": '{"id": "q"}',
            "chosen-append/offsets/0": 'v1\n{"batchTimestampMs": 1000}\n{"logOffset": 0}',
            "chosen-append/commits/0": "v1\n{}",
        }
    )
    with stored(files) as patch:
        patch.setenv("JAVA_HOME", "/none")
        status = CliRunner().invoke(command, ["status", str(tmp_path / "p.toml"), "-o", "json"])
        reset = CliRunner().invoke(command, ["reset", str(tmp_path / "p.toml"), "--dry-run"])
    document = json.loads(status.output)
    assert (document["state"], document["checkpoint"]) == ("stopped", "s3a://bucket/visits")
    assert [(query["query"], query["batch"]) for query in document["queries"]] == [("chosen-append", 0)]
    assert "chosen-append: forgets batch 0" in reset.output, reset.output


def test_validate_says_that_it_does_not_compare(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(FILE)
    done = CliRunner().invoke(command, ["validate", str(tmp_path / "p.toml")])
    assert (done.exit_code, "s3a://bucket/visits is compared at the start" in done.output) == (0, True), done.output


def test_a_diff_knows_the_checkpoint_by_its_url(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(FILE)
    (tmp_path / "b.toml").write_text(FILE.replace("bucket/visits", "bucket/others"))
    same = CliRunner().invoke(command, ["diff", str(tmp_path / "a.toml"), str(tmp_path / "a.toml")])
    other = CliRunner().invoke(command, ["diff", str(tmp_path / "a.toml"), str(tmp_path / "b.toml")])
    assert "no difference" in same.output
    assert "s3a://bucket/others instead of s3a://bucket/visits" in other.output
