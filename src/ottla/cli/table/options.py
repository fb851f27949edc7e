"""What `ottla table` and `ottla pipeline export` share: what is asked, and how it ends (`table_watch`: how it goes).

Exit codes: 0 in step, done, or stopped; 1 failed; 2 asked wrongly; 130 stopped before the end of what was to be exported.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ottla.cli.common.errors import bootstrap_option, told
from ottla.cli.common.paths import LocalPath
from ottla.cli.common.record_options import client_settings, setting_option
from ottla.client.sync.waiting import Stop

if TYPE_CHECKING:
    from ottla.lake.table.schema_resolution import RequestedFormat
    from ottla.lake.table.sync import SyncOptions
    from ottla.lake.table.target import Target

F = TypeVar("F", bound=Callable[..., Any])
INTERRUPTED = 130
EMPTY_WAIT_S = 1.0


def table_options(function: F) -> F:
    """The options of both commands."""
    for option in (
        bootstrap_option,
        setting_option,
        click.option(
            "-o", "--output", type=click.Choice(["auto", "text", "json"]), default="auto", help="A line that moves, or JSON lines."
        ),
        click.option("--commit-bytes", metavar="SIZE", default="128MiB", help="Commit when there is so much.  [default: 128MiB]"),
        click.option(
            "--on-loss", type=click.Choice(["fail", "warn"]), default="fail",
            help="When records were deleted before the table had them: end, or go on and say so.  [default: fail]",
        ),
        click.option(
            "--on-conflict", type=click.Choice(["widen", "corrupt"]), default="widen",
            help="When whole numbers get fractions: write the Delta table anew with the wider type, or put such values into _corrupt."
            "  [default: widen]",
        ),
        click.option("--partition-by", type=click.Choice(["date"]), help="A directory per day of the records' timestamps."),
        click.option(
            "--columns", metavar="NAME,...",
            help="Columns of the record beside its value: key, headers, partition, offset, timestamp; and value, for its bytes"
            " beside what was made of them.  [default: all but value]",
        ),
        click.option("--registry", metavar="URL", envvar="OTTLA_REGISTRY", help="Schema registry, for avro; OTTLA_REGISTRY sets it too."),
        click.option(
            "--schema", metavar="TEXT|FILE",
            help="Of values: 'id BIGINT, tags ARRAY<STRING>' for json and csv, Avro's JSON for avro; or a file.",
        ),
        click.option("--key", metavar="FORMAT", help="What keys are: text, raw, int.  [default: what the first records look like]"),
        click.option(
            "--value", metavar="FORMAT",
            help="What values are: json, avro, csv (columns), text, raw (one column).  [default: what the first records look like]",
        ),
        click.option(
            "--to", "directory", required=True, type=LocalPath(path_type=Path, file_okay=False), metavar="DIR", help="The table."
        ),
    ):  # fmt: skip
        function = option(function)
    return function


def asked_of(given: dict[str, Any], *, mode: str | None) -> RequestedFormat:
    """What the user says of the table's form. Raises: UsageError."""
    from ottla.lake.table.schema_resolution import RequestedFormat

    columns = given["columns"]
    return RequestedFormat(
        value=given["value"],
        key=given["key"],
        columns=None if columns is None else [name.strip() for name in columns.split(",") if name.strip()],
        schema=_schema_text(given["schema"]),
        by_date=given["partition_by"] == "date",
        mode=mode,
        registry=given["registry"] is not None,
    )


def _schema_text(given: str | None) -> str | None:
    if given is None or any(sign in given for sign in " <{[\n"):
        return given
    from ottla.base.paths import local_path

    try:
        return Path(local_path(given.removeprefix("@"))).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--schema expects columns such as 'id BIGINT, name STRING', or a file: {error}") from None


def bytes_of(text: str, option: str) -> int:
    """A size such as 128MiB. Raises: UsageError."""
    from ottla.cli.common.arguments import setting_value

    value = setting_value("bytes", text)
    if not value.isdecimal() or not int(value):
        raise click.UsageError(f"{option} expects a size such as 64MiB, not {text!r}")
    return int(value)


def keep(part_text: str, given: dict[str, Any], plan: SyncOptions, asked: RequestedFormat, target: Target) -> None:
    """Does it, and tells how it goes. Raises: ClickException, UsageError, SystemExit."""
    from ottla.cli.table.progress import watching
    from ottla.client.fetch.ranges import parse_part
    from ottla.client.options import ConsumerOptions
    from ottla.lake.table.rows import Rows
    from ottla.lake.table.schema_resolution import resolve_format
    from ottla.lake.table.sync import TableSync
    from ottla.lake.table.topic import Topic

    with _told_of_tables(), stopping() as stop:
        part = parse_part(part_text, int(time.time() * 1000))
        settings: dict[str, Any] = {"client_id": "ottla-cli", "default_api_timeout_ms": 30_000, "bootstrap_servers": given["bootstrap"]}
        settings |= client_settings(ConsumerOptions, given["settings"])
        with Topic(part.topic, partitions=part.partitions, **settings) as topic:
            watcher = watching(given["output"], follows=not plan.once)
            while (found := resolve_format(topic, target, asked, plan.range)) is None and not plan.once and not stop.wait(EMPTY_WAIT_S):
                pass
            if found is None:
                watcher.noted("empty", f"topic {part.topic} has no records, and nothing says what they will be like: --value")
                return
            form = found.form
            watcher.noted("form", f"value {form.value}, key {form.key}, {form.mode}")
            rows = Rows(form, schema_by_id=_registry(given["registry"]), widens=given["on_conflict"] == "widen")
            try:
                standing = TableSync(topic, target, rows, plan, watcher=watcher, sample_values=found.sample_values, stop=stop).run()
            finally:
                watcher.end()
                target.close()
            watcher.summary(standing)
            if plan.once and stop.is_set() and standing.lag:
                raise SystemExit(INTERRUPTED)


def _registry(url: str | None) -> Callable[[int], str | None] | None:
    from ottla.cli.common.schemas import Registry

    return None if url is None else Registry(url).schema_if_there


@contextmanager
def _told_of_tables() -> Iterator[None]:
    from ottla.lake.table.delta import Overtaken, needed_delta
    from ottla.lake.table.parquet_files import AGAIN, FULL

    try:
        needed_delta()
        from deltalake.exceptions import DeltaError

        with told():
            try:
                yield
            except (OSError, DeltaError) as error:
                if FULL not in str(error):
                    raise
                raise click.ClickException(f"{' '.join(str(error).split())}; {AGAIN}") from None
    except (Overtaken, ImportError) as error:
        raise click.ClickException(" ".join(str(error).split())) from None
    except DeltaError as error:
        raise click.ClickException(f"Delta: {' '.join(str(error).split())}") from None


@contextmanager
def stopping() -> Iterator[Stop]:
    """An event that Ctrl-C and SIGTERM set, so that what was read is committed; a second one interrupts."""
    stop = Stop()

    def heard(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {one: signal.signal(one, heard) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
