"""``ottla pipeline load FILES --to TOPIC``: files into a topic, from where the last run of it stopped. No Spark, no Java.

Exit codes: 0 all there is to load is written, 1 something is not (it is named), 2 asked wrongly, 130 interrupted.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.common.complete import topic_names
from ottla.cli.common.errors import admin, bootstrap_option, terminated, told
from ottla.cli.common.paths import LocalPath
from ottla.cli.common.record_options import client_settings, setting_option

if TYPE_CHECKING:
    from ottla.client.admin.results import TopicDescription
    from ottla.client.sync.admin import Admin
    from ottla.lake.load.column_mapping import ColumnMapping
    from ottla.lake.load.inputs import Input
    from ottla.lake.load.load_journal import LoadJournal
    from ottla.lake.load.plan import LoadPlan
    from ottla.lake.load.readers import ReadOptions
    from ottla.wire.errors import KafkaError

FORMATS = ("csv", "tsv", "json", "parquet", "arrow", "text")
INTERRUPTED = 130
#: How long brokers may take to make room for more.
ROOM_TIMEOUT_MS = 120_000
#: How long a topic that was just made may take to be known everywhere.
CREATED_S = 15.0
SHOWN = 10
EPILOG = r"""
\b
Examples:
  ottla pipeline load orders.csv --to orders --key id
  ottla pipeline load 'exports/*.parquet' --to flights --key '{carrier}-{number}' --timestamp departed
  ottla pipeline load access.log --to lines --header source={_file}
  zcat big.jsonl.gz | ottla pipeline load - --format json --to events --key user
  ottla pipeline load orders.csv --to orders --key id --dry-run

\b
The same command again goes on where it stopped, and loads what is new.
""".replace(r"\b", "\b")


@click.command("load", epilog=EPILOG)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--to", "topic", required=True, metavar="TOPIC", shell_complete=topic_names, help="The topic to load into.")
@click.option("--format", "form", type=click.Choice(FORMATS), help="What the files are.  [default: by their names]")
@click.option("--key", metavar="COLUMN|TEMPLATE", help="The key: a column, or a template such as '{country}-{id}'.")
@click.option("--value", metavar="COLUMN", help="The value is this column as it is.  [default: the row as JSON]")
@click.option("--columns", metavar="NAME,...", help="The columns of the value.  [default: all]")
@click.option("--without", metavar="NAME,...", help="Columns that are left out of the value.")
@click.option(
    "-H", "--header", "headers", multiple=True, metavar="NAME=TEMPLATE", help="A header: text, {column}, {_file}, {_row}; may be repeated."
)
@click.option("--headers", "headers_column", metavar="COLUMN", help="A column of lists of (name, value), or of maps, instead.")
@click.option("--timestamp", metavar="COLUMN", help="The records' time: times, ISO 8601, or milliseconds.  [default: now]")
@click.option("-p", "--partition", metavar="COLUMN|NUMBER", help="The partition.  [default: the key decides]")
@click.option("--base64", "base64", metavar="NAME,...", help="Columns of bytes that are written in base64.")
@click.option("--delimiter", metavar="CHAR", help="csv: what stands between fields.  [default: a comma, of tsv a tab]")
@click.option("--quote", metavar="CHAR|none", default='"', show_default=True, help="csv: what stands around fields.")
@click.option("--names", metavar="NAME,...", help="csv: the columns' names, where the first line has none.")
@click.option("--null", "nulls", multiple=True, metavar="WORD", help="csv: a word that means nothing; may be repeated.")
@click.option("--type", "types", multiple=True, metavar="NAME=TYPE", help="csv: the type of a column, such as zip=string; may be repeated.")
@click.option("--text", "all_text", is_flag=True, help="csv: all columns are text.")
@click.option(
    "--bad-records",
    metavar="fail|skip|FILE",
    type=LocalPath(dir_okay=False),
    default="fail",
    show_default=True,
    help="What becomes of records that cannot be read.",
)
@click.option("--mixed", is_flag=True, help="Files may have different columns.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Write at most N records; the next run goes on behind them.")
@click.option("--rate", metavar="N", help="At most N records a second; 10k and 1M are understood.")
@click.option("--create", is_flag=True, help="Create the topic if it is not there.")
@click.option("--partitions", type=click.IntRange(min=1), metavar="N", help="Partitions of a topic that is created.")
@click.option(
    "--state", type=LocalPath(path_type=Path), metavar="FILE", help="The journal of what is loaded.  [default: .ottla/load/TOPIC-ID.jsonl]"
)
@click.option("--again", is_flag=True, help="Load the files from their beginnings, whatever is loaded already.")
@click.option(
    "--changed",
    type=click.Choice(["fail", "again", "continue", "skip"]),
    default="fail",
    show_default=True,
    help="Files that have changed since.",
)
@click.option("-z", "--compression", metavar="CODEC[:LEVEL]", default="none", show_default=True, help="none, gzip, snappy, lz4 or zstd.")
@click.option("--dry-run", is_flag=True, help=f"Send nothing: print the first {SHOWN} records, or --limit of them, as JSON lines.")
@click.option("-o", "--output", type=click.Choice(["auto", "text", "json"]), default="auto", help="A line of progress, or JSON lines.")
@setting_option
@bootstrap_option
def load(files: tuple[str, ...], topic: str, bootstrap: str, settings: tuple[str, ...], **asked: Any) -> None:
    """Load files into a topic: csv, JSON lines, Parquet, Arrow, text. A directory stands for all files in it."""
    from ottla.cli.pipeline.load_options import how_asked, rate_asked, shape_asked
    from ottla.cli.produce.command import _codec
    from ottla.client.arrow.columns import needed_arrow
    from ottla.client.options import ProducerOptions
    from ottla.lake.load.inputs import inputs
    from ottla.lake.load.plan import compare_columns, plan_files

    try:
        needed_arrow()
    except ImportError as error:
        raise click.ClickException(str(error)) from None
    ours = {"bootstrap_servers": bootstrap, "client_id": "ottla-load", **_codec(asked["compression"])}
    ours |= client_settings(ProducerOptions, settings)
    with told():
        shape = shape_asked(asked, int(ours.get("max_request_size", 1 << 20)))
        how = how_asked(asked, shape)
        speed = None if asked["rate"] is None else rate_asked(asked["rate"])
        found = inputs(files, asked["form"])
        if asked["dry_run"]:
            _dry_run(found, shape, how, asked["limit"] or SHOWN, topic)
            return
        with _journal(found, asked["state"], topic, _topic(topic, asked, bootstrap)) as journal:
            plan = plan_files(found, journal, shape, how, changed=asked["changed"], again=asked["again"])
            compare_columns(plan.files, shape, how, mixed=asked["mixed"])
            _load(plan, journal, shape, how, topic, speed, asked, ours)


def _load(
    plan: LoadPlan,
    journal: LoadJournal | None,
    shape: ColumnMapping,
    how: ReadOptions,
    topic: str,
    rate: float | None,
    asked: dict[str, Any],
    ours: dict[str, Any],
) -> None:
    from ottla.cli.pipeline.load_progress import LoadWatch
    from ottla.client.options import ConsumerOptions
    from ottla.client.sync.consumer import Consumer
    from ottla.client.sync.producer import Producer
    from ottla.lake.load.run import LoadTotals, load_files
    from ottla.wire.errors import KafkaError

    totals = LoadTotals()
    human = asked["output"] == "text" or (asked["output"] == "auto" and sys.stdout.isatty())
    watch = LoadWatch(plan.files, totals, asked["bad_records"], rate, human=human)
    if plan.loaded and human:
        few = f": {', '.join(one.name for one in plan.loaded)}" if len(plan.loaded) <= 3 else ""
        watch.note(f"{_files(len(plan.loaded))} loaded already{few}; --again loads all")
    for one in plan.changed:
        watch.note(f"{one.name} has changed and is left out")
    reading = {"bootstrap_servers": ours["bootstrap_servers"], "client_id": "ottla-load", **client_settings(ConsumerOptions, ())}
    problem: Exception | None = None
    try:
        with Producer(**{"max_block_ms": ROOM_TIMEOUT_MS, **ours}) as producer, terminated():
            load_files(
                plan.files, producer, lambda: Consumer(**reading), topic, shape, how, watch, totals,
                journal=journal, limit=asked["limit"], portion=watch.portion,
            )  # fmt: skip
    except (KafkaError, ValueError, OSError) as error:
        problem = error
    except KeyboardInterrupt:
        watch.close()
        again = "" if journal is None else "; the same command goes on from there"
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


def _topic(topic: str, asked: dict[str, Any], bootstrap: str) -> TopicDescription:
    """The topic, which is created if that is asked for. Raises: ClickException, KafkaError."""
    from ottla.base.options import suggestion
    from ottla.client.admin.results import NewTopic
    from ottla.wire.errors import KafkaError, UnknownTopicOrPartition

    with admin(bootstrap) as asking:
        found = asking.describe_topics([topic])[topic]
        if isinstance(found, UnknownTopicOrPartition):
            if not asked["create"]:
                near = suggestion(topic, [one.name for one in asking.list_topics()])
                raise click.ClickException(f"there is no topic {topic}{near}; --create --partitions 4 makes it") from None
            made = asking.create_topics([NewTopic(topic, asked["partitions"] or -1)])[topic]
            if isinstance(made, KafkaError):
                raise made
            found = _once_there(asking, topic)
    if isinstance(found, KafkaError):
        raise found
    if asked["partitions"] and len(found.partitions) != asked["partitions"]:
        raise click.ClickException(f"topic {topic} is there, with {len(found.partitions)} partitions and not {asked['partitions']}")
    return found


def _once_there(asking: Admin, topic: str) -> TopicDescription | KafkaError:
    """A topic that was made a moment ago, when the broker that is asked has heard of it."""
    from ottla.wire.errors import UnknownTopicOrPartition

    until = time.monotonic() + CREATED_S
    while True:
        found = asking.describe_topics([topic])[topic]
        if not isinstance(found, UnknownTopicOrPartition) or time.monotonic() > until:
            return found
        time.sleep(0.05)


@contextmanager
def _journal(found: list[Input], state: Path | None, topic: str, description: TopicDescription) -> Iterator[LoadJournal | None]:
    """Where it is kept what is loaded; nowhere, of standard input alone."""
    from ottla.base.ids import NO_TOPIC_ID
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
    """Print the first records as they would be sent, in the form that `ottla produce -o json` takes."""
    import msgspec

    from ottla.cli.common.errors import json_bytes
    from ottla.lake.load.preview import preview

    shown = 0
    for record in preview(found, shape, how, limit):
        told: dict[str, Any] = {"key": json_bytes(record.key), "value": json_bytes(record.value)}
        told["headers"] = [[name, json_bytes(value)] for name, value in record.headers]
        told |= {name: one for name, one in (("partition", record.partition), ("timestamp", record.timestamp_ms)) if one is not None}
        click.echo(msgspec.json.encode(told))
        shown += 1
    click.echo(f"Nothing was sent: these are the first {shown:,} records for {topic}", err=True)
