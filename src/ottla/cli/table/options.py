"""Options and main function of `ottla table sync` and `ottla pipeline export`.

Exit codes: 0 in sync, done, or stopped; 1 failed; 2 usage error; 130 stopped before the end of the export.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.base.paths import local_path
from ottla.cli.common.arguments import setting_value
from ottla.cli.common.connection import combined
from ottla.cli.common.errors import bootstrap_option, reporting_errors
from ottla.cli.common.lazy import INTERRUPTED
from ottla.cli.common.paths import LocationPath
from ottla.cli.common.record_options import client_settings, registry_option, setting_option
from ottla.cli.table.places import place_options
from ottla.cli.table.progress import progress_reporter
from ottla.client.fetch.ranges import parse_part
from ottla.client.options import ConsumerOptions
from ottla.client.sync.waiting import stopped_by_signals
from ottla.lake.full_disk import AGAIN, FULL

if TYPE_CHECKING:
    from ottla.lake.table.schema_resolution import RequestedFormat
    from ottla.lake.table.sync import SyncOptions
    from ottla.lake.table.target import Target

EMPTY_WAIT_S = 1.0


#: Options of both commands.
table_options = combined(
    bootstrap_option,
    setting_option,
    click.option(
        "-o", "--output", type=click.Choice(["auto", "text", "json"]), default="auto", help="Progress as a line or as JSON lines."
    ),
    click.option("--commit-bytes", metavar="SIZE", default="128MiB", help="Maximum size of a commit. [default: 128MiB]"),
    click.option(
        "--on-loss", type=click.Choice(["fail", "warn"]), default="fail",
        help="If records were deleted before the table got them: fail, or warn and continue. [default: fail]",
    ),
    click.option(
        "--on-conflict", type=click.Choice(["widen", "corrupt"]), default="widen",
        help="If an integer column gets fractions: rewrite the table with a wider type, or put the values into _corrupt."
        " [default: widen]",
    ),
    click.option("--partition-by", type=click.Choice(["date"]), help="Partition the table by day of the timestamp."),
    click.option(
        "--columns", metavar="NAME,...",
        help="Metadata columns: key, headers, partition, offset, timestamp, and value (the undecoded bytes)."
        " [default: all but value]",
    ),
    registry_option,
    click.option(
        "--schema", metavar="TEXT|FILE",
        help="Schema of values: 'id BIGINT, tags ARRAY<STRING>' for json and csv, JSON for avro; or a file.",
    ),
    click.option("--key", metavar="FORMAT", help="Format of keys: text, raw, int. [default: inferred from the first records]"),
    click.option(
        "--value", metavar="FORMAT",
        help="Format of values: json, avro, csv (columns), text, raw (one column). [default: inferred from the first records]",
    ),
    place_options,
    click.option(
        "--to", "directory", required=True, type=LocationPath(), metavar="DIR|URL|NAME",
        help="Table directory, or s3://, gs://, az://; with --catalog NAMESPACE.TABLE.",
    ),
)  # fmt: skip


def schema_request(options: dict[str, Any], *, mode: str | None) -> RequestedFormat:
    """The schema options. Raises: UsageError."""
    from ottla.lake.table.schema_resolution import RequestedFormat

    columns = options["columns"]
    return RequestedFormat(
        value=options["value"],
        key=options["key"],
        columns=None if columns is None else [name.strip() for name in columns.split(",") if name.strip()],
        schema=_schema_text(options["schema"]),
        by_date=options["partition_by"] == "date",
        mode=mode,
        registry=options["registry"] is not None,
    )


def _schema_text(text: str | None) -> str | None:
    if text is None or any(sign in text for sign in " <{[\n"):
        return text
    try:
        return Path(local_path(text.removeprefix("@"))).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--schema expects columns such as 'id BIGINT, name STRING', or a file: {error}") from None


def parse_bytes(text: str, option: str) -> int:
    """A size such as 128MiB. Raises: UsageError."""
    value = setting_value("bytes", text)
    if not value.isdecimal() or not int(value):
        raise click.UsageError(f"{option} expects a size such as 64MiB, not {text!r}")
    return int(value)


def sync_table(part_text: str, options: dict[str, Any], plan: SyncOptions, request: RequestedFormat, target: Target) -> None:
    """Syncs a table with a topic, and reports progress. Raises: ClickException, UsageError, SystemExit."""
    from ottla.lake.table.rows import Rows
    from ottla.lake.table.schema_resolution import resolve_format
    from ottla.lake.table.sync import TableSync
    from ottla.lake.table.topic import Topic

    with _reporting_errors(), stopped_by_signals() as stop:
        part = parse_part(part_text, int(time.time() * 1000))
        settings: dict[str, Any] = {"client_id": "ottla-cli", "default_api_timeout_ms": 30_000, "bootstrap_servers": options["bootstrap"]}
        settings |= client_settings(ConsumerOptions, options["settings"])
        with Topic(part.topic, partitions=part.partitions, **settings) as topic:
            watcher = progress_reporter(options["output"], follows=not plan.once)
            while (found := resolve_format(topic, target, request, plan.range)) is None and not plan.once and not stop.wait(EMPTY_WAIT_S):
                pass
            if found is None:
                watcher.noted("empty", f"topic {part.topic} has no records to infer a schema from: set the format with --value")
                return
            form = found.form
            watcher.noted("form", f"value {form.value}, key {form.key}, {form.mode}")
            rows = Rows(form, schema_by_id=_registry(options["registry"]), widens=options["on_conflict"] == "widen")
            try:
                progress = TableSync(topic, target, rows, plan, watcher=watcher, sample_values=found.sample_values, stop=stop).run()
            finally:
                watcher.end()
                target.close()
            watcher.summary(progress)
            if plan.once and stop.is_set() and progress.lag:
                raise SystemExit(INTERRUPTED)


def _registry(url: str | None) -> Callable[[int], str | None] | None:
    from ottla.client.schema_registry import Registry

    return None if url is None else Registry(url, option="--registry").schema_if_there


@contextmanager
def _reporting_errors() -> Iterator[None]:
    from deltalake.exceptions import DeltaError

    from ottla.lake.storage import plain
    from ottla.lake.table.delta import Overtaken

    try:
        with reporting_errors():
            try:
                yield
            except (OSError, DeltaError) as error:
                if FULL not in str(error):
                    if isinstance(error, OSError) and error.errno is None:
                        # An error of an object store.
                        raise click.ClickException(plain(str(error))) from None
                    raise
                raise click.ClickException(f"{' '.join(str(error).split())}; {AGAIN}") from None
    except Overtaken as error:
        raise click.ClickException(plain(str(error))) from None
    except DeltaError as error:
        raise click.ClickException(f"Delta: {plain(str(error))}") from None
