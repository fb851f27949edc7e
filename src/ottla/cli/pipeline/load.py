"""``ottla pipeline load FILES --to TOPIC``: loads files into a topic, and continues an earlier run. Needs no Spark and no Java.

Exit codes: 0 everything is written, 1 a record is not written (the message names it), 2 usage error, 130 interrupted.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import ottla
from ottla.base.ids import NO_TOPIC_ID
from ottla.base.options import suggestion
from ottla.cli.common.complete import topic_names
from ottla.cli.common.connection import profile_storage
from ottla.cli.common.errors import admin, bootstrap_option, json_bytes, reporting_errors, sigterm_as_interrupt
from ottla.cli.common.lazy import INTERRUPTED
from ottla.cli.common.paths import LocalPath, storage_option, storage_options
from ottla.cli.common.rate_limit import parse_rate
from ottla.cli.common.record_options import client_settings, setting_option
from ottla.client.admin.calls import good
from ottla.client.admin.results import NewTopic, TopicDescription
from ottla.client.options import ConsumerOptions, ProducerOptions
from ottla.wire.errors import KafkaError, UnknownTopicOrPartition

if TYPE_CHECKING:
    from ottla.lake.load.column_mapping import ColumnMapping
    from ottla.lake.load.inputs import Input
    from ottla.lake.load.load_journal import LoadJournal
    from ottla.lake.load.plan import LoadPlan
    from ottla.lake.load.reader import ReadOptions

FORMATS = ("csv", "tsv", "json", "parquet", "arrow", "text")
#: max.block.ms: while the producer's buffer is full.
BUFFER_TIMEOUT_MS = 120_000
#: Timeout for a new topic to appear in the metadata.
CREATED_S = 15.0
PREVIEW_RECORDS = 10
EPILOG = r"""
\b
Examples:
  ottla pipeline load orders.csv --to orders --key id
  ottla pipeline load 'exports/*.parquet' --to flights --key '{carrier}-{number}' --timestamp departed
  ottla pipeline load access.log --to lines --header source={_file}
  zcat big.jsonl.gz | ottla pipeline load - --format json --to events --key user
  ottla pipeline load orders.csv --to orders --key id --dry-run

\b
The same command again continues where it stopped, and loads new rows.
""".replace(r"\b", "\b")


@click.command("load", epilog=EPILOG)
@click.argument("files", nargs=-1, required=True, metavar="FILE|URL...")
@click.option("--to", "topic", required=True, metavar="TOPIC", shell_complete=topic_names, help="Topic to load into.")
@click.option("--format", "form", type=click.Choice(FORMATS), help="Format of the files. [default: by their names]")
@click.option("--key", metavar="COLUMN|TEMPLATE", help="Key: a column, or a template such as '{country}-{id}'.")
@click.option("--value", metavar="COLUMN", help="Column of the value. [default: the row as JSON]")
@click.option("--columns", metavar="NAME,...", help="Columns of the value. [default: all]")
@click.option("--without", metavar="NAME,...", help="Columns to omit from the value.")
@click.option(
    "-H", "--header", "headers", multiple=True, metavar="NAME=TEMPLATE", help="Header: text, {column}, {_file}, {_row}; repeatable."
)
@click.option("--headers", "headers_column", metavar="COLUMN", help="Column of headers: lists of (name, value), or maps.")
@click.option("--timestamp", metavar="COLUMN", help="Column of timestamps: times, ISO 8601, or ms since 1970. [default: now]")
@click.option("-p", "--partition", metavar="COLUMN|NUMBER", help="Partition, or its column. [default: by key]")
@click.option("--base64", "base64", metavar="NAME,...", help="Columns with base64, decoded to bytes.")
@click.option("--delimiter", metavar="CHAR", help="csv: field delimiter. [default: comma; tsv: tab]")
@click.option("--quote", metavar="CHAR|none", default='"', show_default=True, help="csv: quote character.")
@click.option("--names", metavar="NAME,...", help="csv: column names of files without a header line.")
@click.option("--null", "nulls", multiple=True, metavar="WORD", help="csv: text that is read as null; repeatable.")
@click.option("--type", "types", multiple=True, metavar="NAME=TYPE", help="csv: type of a column, such as zip=string; repeatable.")
@click.option("--text", "all_text", is_flag=True, help="csv: read all columns as text.")
@click.option(
    "--bad-records",
    metavar="fail|skip|FILE",
    type=LocalPath(dir_okay=False),
    default="fail",
    show_default=True,
    help="Invalid records: fail, skip them, or write them to a file.",
)
@click.option("--mixed", is_flag=True, help="Allow files with different columns.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Write at most N records; the next run continues after them.")
@click.option("--rate", metavar="N", help="Limit in records per second, such as 500, 10k or 1M.")
@click.option("--create", is_flag=True, help="Create the topic if it does not exist.")
@click.option("--partitions", type=click.IntRange(min=1), metavar="N", help="With --create: number of partitions.")
@click.option("--state", type=LocalPath(path_type=Path), metavar="FILE", help="Load journal. [default: .ottla/load/TOPIC-ID.jsonl]")
@click.option("--again", is_flag=True, help="Load the files from their beginning, even if they are loaded.")
@click.option(
    "--changed",
    type=click.Choice(["fail", "again", "continue", "skip"]),
    default="fail",
    show_default=True,
    help="Files that changed after they were loaded.",
)
@click.option("-z", "--compression", metavar="CODEC[:LEVEL]", default="none", show_default=True, help="none, gzip, snappy, lz4 or zstd.")
@click.option("--dry-run", is_flag=True, help=f"Print the first {PREVIEW_RECORDS} records, or --limit, as JSON lines; send nothing.")
@click.option("-o", "--output", type=click.Choice(["auto", "text", "json"]), default="auto", help="Progress as a line or as JSON lines.")
@storage_option
@setting_option
@bootstrap_option
def load(files: tuple[str, ...], topic: str, bootstrap: str, settings: tuple[str, ...], **options: Any) -> None:
    """Load files, or all files of directories, into a topic: csv, JSON lines, Parquet, Arrow, text."""
    from ottla.cli.produce.command import _codec

    ours = {"bootstrap_servers": bootstrap, "client_id": "ottla-load", **_codec(options["compression"])}
    ours |= client_settings(ProducerOptions, settings)
    with reporting_errors():
        from ottla.cli.pipeline.load_options import column_mapping, read_options
        from ottla.lake.load.inputs import inputs
        from ottla.lake.load.plan import compare_columns, plan_files

        shape = column_mapping(options, int(ours.get("max_request_size", 1 << 20)))
        how = read_options(options, shape)
        speed = None if options["rate"] is None else parse_rate(options["rate"], "--rate")
        given = storage_options(options["storage"])
        found = inputs(files, options["form"], lambda url: {**profile_storage(url), **given})
        if options["dry_run"]:
            _dry_run(found, shape, how, options["limit"] or PREVIEW_RECORDS, topic)
            return
        with _journal(found, options["state"], topic, _topic(topic, options, bootstrap)) as journal:
            plan = plan_files(found, journal, shape, how, changed=options["changed"], again=options["again"])
            compare_columns(plan.files, shape, how, mixed=options["mixed"])
            _load(plan, journal, shape, how, topic, speed, options, ours)


def _load(
    plan: LoadPlan,
    journal: LoadJournal | None,
    shape: ColumnMapping,
    how: ReadOptions,
    topic: str,
    rate: float | None,
    options: dict[str, Any],
    ours: dict[str, Any],
) -> None:
    from ottla.cli.pipeline.load_progress import LoadWatch
    from ottla.lake.load.run import LoadTotals, load_files

    totals = LoadTotals()
    human = options["output"] == "text" or (options["output"] == "auto" and sys.stdout.isatty())
    watch = LoadWatch(plan.files, totals, options["bad_records"], rate, human=human)
    if plan.loaded and human:
        few = f": {', '.join(one.name for one in plan.loaded)}" if len(plan.loaded) <= 3 else ""
        watch.note(f"{_files(len(plan.loaded))} loaded already{few}; --again loads all")
    for one in plan.changed:
        watch.note(f"{one.name} has changed and is skipped")
    reading = {"bootstrap_servers": ours["bootstrap_servers"], "client_id": "ottla-load", **client_settings(ConsumerOptions, ())}
    problem: Exception | None = None
    try:
        with ottla.Producer(**{"max_block_ms": BUFFER_TIMEOUT_MS, **ours}) as producer, sigterm_as_interrupt():
            load_files(
                plan.files, producer, lambda: ottla.Consumer(**reading), topic, shape, how, watch, totals,
                journal=journal, limit=options["limit"], portion=watch.portion,
            )  # fmt: skip
    except (KafkaError, ValueError, OSError) as error:
        problem = error
    except KeyboardInterrupt:
        watch.close()
        again = "" if journal is None else "; the same command continues there"
        click.echo(f"Interrupted: {totals.written:,} records were written to {topic}{again}", err=True)
        raise SystemExit(INTERRUPTED) from None
    finally:
        watch.close()
    if problem is not None:
        before = f"{totals.written:,} record{' was' if totals.written == 1 else 's were'} written before"
        raise click.ClickException(f"{' '.join(str(problem).split())}; {before}") from None
    watch.ends(topic, already=len(plan.loaded))


def _files(count: int) -> str:
    return "1 file is" if count == 1 else f"{count:,} files are"


def _topic(topic: str, options: dict[str, Any], bootstrap: str) -> TopicDescription:
    """The topic, created with `--create`. Raises: ClickException, KafkaError."""
    with admin(bootstrap) as client:
        found = client.describe_topics([topic])[topic]
        if isinstance(found, UnknownTopicOrPartition):
            if not options["create"]:
                near = suggestion(topic, [one.name for one in client.list_topics()])
                raise click.ClickException(f"topic {topic} does not exist{near}; create it with --create --partitions 4") from None
            client.create_topic(NewTopic(topic, options["partitions"] or -1))
            found = _await_topic(client, topic)
    described = good(found)
    if options["partitions"] and len(described.partitions) != options["partitions"]:
        raise click.ClickException(f"topic {topic} exists with {len(described.partitions)} partitions, not {options['partitions']}")
    return described


def _await_topic(client: ottla.Admin, topic: str) -> TopicDescription | KafkaError:
    """A new topic, once it is in the broker's metadata."""
    until = time.monotonic() + CREATED_S
    while True:
        found = client.describe_topics([topic])[topic]
        if not isinstance(found, UnknownTopicOrPartition) or time.monotonic() > until:
            return found
        time.sleep(0.05)


@contextmanager
def _journal(found: list[Input], state: Path | None, topic: str, description: TopicDescription) -> Iterator[LoadJournal | None]:
    """The load journal; None if standard input is the only input."""
    from ottla.lake.load.inputs import STDIN
    from ottla.lake.load.load_journal import DIRECTORY, JournalHeader, LoadJournal

    if all(one.name == STDIN for one in found):
        yield None
        return
    word = "" if description.topic_id == NO_TOPIC_ID else description.topic_id.hex()[:8]
    with LoadJournal(
        state or DIRECTORY / f"{topic}{'-' if word else ''}{word}.jsonl", JournalHeader(topic, description.topic_id.hex())
    ) as journal:
        yield journal


def _dry_run(found: list[Input], shape: ColumnMapping, how: ReadOptions, limit: int, topic: str) -> None:
    """Prints the first records in the format of `ottla produce -i json`."""
    import msgspec

    from ottla.lake.load.preview import preview

    count = 0
    for record in preview(found, shape, how, limit):
        line: dict[str, Any] = {"key": json_bytes(record.key), "value": json_bytes(record.value)}
        line["headers"] = [[name, json_bytes(value)] for name, value in record.headers]
        line |= {name: one for name, one in (("partition", record.partition), ("timestamp", record.timestamp_ms)) if one is not None}
        click.echo(msgspec.json.encode(line))
        count += 1
    click.echo(f"Nothing was sent: these are the first {count:,} records for {topic}", err=True)
