"""`ottla produce`: sends lines, JSON, CSV, tables or whole files as records.

`produce.input` parses the input, `produce.sending` sends records and reports failures. On a terminal a progress line and a summary are
printed, in a pipe only errors.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

import click

import ottla
from ottla.cli.common.arguments import duration_ms, time_ms
from ottla.cli.common.complete import topic_names
from ottla.cli.common.errors import admin, bootstrap_option, json_bytes, reporting_errors, sigterm_as_interrupt
from ottla.cli.common.lazy import INTERRUPTED, JSON_OUTPUT
from ottla.cli.common.output_formats import fields, note
from ottla.cli.common.paths import LocalPath
from ottla.cli.common.progress import bytes_text, rate_text, terminal_progress
from ottla.cli.common.rate_limit import parse_rate
from ottla.cli.common.record_options import client_settings, format_options, parse_formats, setting_option
from ottla.cli.topic.lookup import suggested_topic
from ottla.client.options import ProducerOptions
from ottla.wire.errors import KafkaError, UnknownTopicOrPartition

if TYPE_CHECKING:
    from ottla.cli.produce.input import Chunk, CountedInput, InputFormat
    from ottla.cli.produce.sending import RecordDefaults, RecordSender
    from ottla.cli.produce.transactions import InputTransactions

#: max.block.ms: for a topic that is to be created, and while the producer's buffer is full.
TOPIC_TIMEOUT_MS, BUFFER_TIMEOUT_MS = 15_000, 120_000
#: Timeout of the flush after Ctrl-C.
INTERRUPT_FLUSH_MS = 10_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
EPILOG = r"""
\b
Examples:
  ottla produce orders < lines.txt            a value per line
  ottla produce orders -K : < lines.txt       KEY:VALUE
  ottla consume a -e -o json | ottla produce b -i json
  ottla produce orders -i csv --key-column id orders.csv
  ottla produce pictures -k logo --file logo.png
  echo tick | ottla produce load -n 100000 --rate 5k
  ottla produce orders --transactional-id nightly < lines.txt

Exit codes: 0 all records written, 1 a record was not written (the message names its line), 2 usage error, 130 interrupted.
""".replace(r"\b", "\b")


@fields(
    topic="topic",
    records="number of records that were written",
    bytes="bytes of the input; null for --file",
    milliseconds="time from the first connection to the last acknowledgement",
)
@click.command(name="produce", epilog=EPILOG)
@click.argument("topic", shell_complete=topic_names)
@click.argument("files", nargs=-1, type=LocalPath(exists=True, dir_okay=False, allow_dash=True), metavar="[FILE]...")
@click.option(
    "--file", "whole", multiple=True, type=LocalPath(exists=True, dir_okay=False), help="Send a whole file as one record; repeatable."
)
@click.option(
    "-i",
    "--input",
    "form",
    type=click.Choice(["text", "json", "csv", "parquet", "arrow"]),
    default="text",
    show_default=True,
    help="Format of the input.",
)
@click.option("-K", "--key-delimiter", metavar="TEXT", help="Split lines at the first TEXT into key and value; '\\t' is a tab.")
@click.option("-D", "--delimiter", metavar="TEXT", default="\\n", show_default=True, help=r"End of a record; escapes are \n, \t, \0, \xNN.")
@click.option("-k", "--key", help="Key of records without one.")
@click.option(
    "-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Header of all records; NAME alone is null; repeatable."
)
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Partition of records without one. [default: by key]")
@click.option("--timestamp", metavar="TIME", help="Timestamp of records without one: ms since 1970 or 2026-01-31T12:00:00. [default: now]")
@click.option("-Z", "empty_is_null", is_flag=True, help="Read empty keys and values as null; a null value is a tombstone.")
@click.option("--null", metavar="TEXT", help="Read TEXT as a null key or value.")
@format_options
@click.option("--key-column", metavar="NAME", help="CSV, Parquet: column of keys. [default: key]")
@click.option("--value-column", metavar="NAME", help="CSV, Parquet: column of values. [default: value, else all columns as JSON]")
@click.option("--columns", metavar="NAME,...", help="CSV: column names of files without a header line.")
@click.option("--ignore", metavar="NAME,...", help="JSON, CSV: fields of the input to ignore, such as partition,timestamp.")
@click.option("-z", "--compression", metavar="CODEC[:LEVEL]", default="none", show_default=True, help=f"One of {', '.join(CODECS)}.")
@click.option(
    "--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True,
    help="Acknowledgement: by all in-sync replicas, by the leader, or none.",
)  # fmt: skip
@click.option(
    "--transactional-id", metavar="ID", help="Write the input in one transaction: all records become visible at the end, or none."
)
@click.option("--transaction-records", type=click.IntRange(min=1), metavar="N", help="A transaction for each N records.")
@click.option("--transaction-duration", metavar="DURATION", help="A transaction for each period, such as 500ms or 10s.")
@click.option("-n", "--each", type=click.IntRange(min=1), default=1, metavar="N", help="Send each record N times.")
@click.option("--rate", metavar="N", help="Limit in records per second, such as 500, 10k or 1M.")
@click.option("--keep-going", is_flag=True, help="Report records that cannot be read or written, and continue; the exit code is 1.")
@click.option("--dry-run", is_flag=True, help="Print the records as JSON lines; send nothing.")
@click.option(
    "-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True,
    help="Print the result as JSON, or on a terminal as a sentence.",
)  # fmt: skip
@setting_option
@bootstrap_option
def command(topic: str, files: tuple[str, ...], whole: tuple[str, ...], bootstrap: str, settings: tuple[str, ...], **options: Any) -> None:
    """Send records from FILEs or standard input to TOPIC."""
    from ottla.cli.produce.input import BadLine, CountedInput, whole_files
    from ottla.cli.produce.sending import chunks

    if whole and (files or options["form"] != "text" or options["key_delimiter"] is not None):
        raise click.UsageError("--file sends a whole file as one record: it cannot be combined with other files, -i or -K")
    ours = {"bootstrap_servers": bootstrap, "client_id": "ottla-cli", "acks": options["acks"], **_codec(options["compression"])}
    ours |= client_settings(ProducerOptions, settings)
    ours = _transaction_settings(options) | ours
    reading, defaults = _input_format(topic, options, ours), _record_defaults(options)
    rate = None if options["rate"] is None else parse_rate(options["rate"], "--rate")
    with contextlib.ExitStack() as opened:
        source = None if whole else CountedInput([(name, _open(name, opened)) for name in files or ("-",)])
        if source is not None and not files and sys.stdin.isatty() and sys.stderr.isatty():
            click.echo("Reading records, one per line; end with Ctrl-D.", err=True)

        def read(complain: Any) -> Iterable[Chunk]:
            return whole_files(whole, reading.value) if source is None else chunks(source, reading, complain)

        with reporting_errors():
            try:
                if options["dry_run"]:
                    _dry_run(topic, read, defaults, options["keep_going"], bootstrap)
                else:
                    _send(topic, read, defaults, rate, options, ours, source)
            except BadLine as error:
                raise click.ClickException(str(error)) from None


def _send(
    topic: str,
    read: Any,
    defaults: RecordDefaults,
    rate: float | None,
    options: dict[str, Any],
    settings: dict[str, Any],
    source: CountedInput | None,
) -> None:
    from ottla.cli.produce.input import BadLine, SendFailed
    from ottla.cli.produce.sending import RecordSender
    from ottla.cli.produce.transactions import InputTransactions

    # A wrong address fails here at once, not only after the producer's timeout. A missing topic may be created later.
    with admin(settings["bootstrap_servers"]) as client:
        outcome = client.describe_topics([topic])[topic]
        if isinstance(outcome, KafkaError) and not isinstance(outcome, UnknownTopicOrPartition):
            raise outcome
        if isinstance(outcome, KafkaError):
            _warn_of_new_topic(client, topic)
    settings.setdefault("max_block_ms", TOPIC_TIMEOUT_MS if isinstance(outcome, KafkaError) else BUFFER_TIMEOUT_MS)
    began = time.monotonic()
    with ottla.Producer(**settings) as producer, sigterm_as_interrupt():
        kind = "line" if options["delimiter"] == "\\n" and options["form"] not in ("parquet", "arrow") else "record"
        transactions = None
        period = options["transaction_duration"]
        period_ms = None if period is None else max(1, duration_ms(period, "--transaction-duration"))
        if options["transactional_id"] is not None:
            transactions = InputTransactions(producer, records_max=options["transaction_records"], duration_ms=period_ms)
        sending = RecordSender(
            producer, topic, defaults, rate=rate, keep_going=options["keep_going"], kind=kind, transactions=transactions
        )  # fmt: skip
        total = None if source is None else _size(source)
        sending.progress = terminal_progress(total) if total is not None or not sys.stdin.isatty() else None
        problem: str | None = None
        aborted = ""
        try:
            sending.send_all(read(sending.complain), source)
        except (SendFailed, BadLine) as error:
            problem = str(error)
        except KafkaError as error:
            if transactions is None:
                raise
            problem = str(error)
        except KeyboardInterrupt:
            _exit_interrupted(sending, topic, transactions)
        if problem is not None and transactions is not None:
            aborted = transactions.abort()
        elif problem is not None:
            # Report the outcome of the records sent before, too.
            with contextlib.suppress(SendFailed):
                sending.finish()
    if sending.progress is not None:
        sending.progress.clear()
    if problem is not None and transactions is not None:
        raise click.ClickException(f"{problem}; {aborted}")
    _report_result(sending, topic, problem, source, time.monotonic() - began)
    if options["output"] == "json":
        document = {"topic": topic, "records": sending.sent, "bytes": None if source is None else source.done}
        click.echo(json.dumps({**document, "milliseconds": round((time.monotonic() - began) * 1000)}))


def _warn_of_new_topic(client: ottla.Admin, topic: str) -> None:
    """A mistyped name would create a topic on a cluster that creates topics automatically."""
    similar = suggested_topic(client, topic)
    creates = "The cluster creates it, if auto.create.topics.enable is on there."
    if similar:
        note(f"Warning: topic {topic} does not exist{similar} {creates}")
    elif sys.stderr.isatty():
        note(f"Topic {topic} does not exist. {creates}")


def _report_result(sending: RecordSender, topic: str, problem: str | None, source: CountedInput | None, seconds: float) -> None:
    """Prints the summary. Raises: ClickException, if a record was not written."""
    if problem is not None:
        before = "1 record before it was" if sending.written == 1 else f"{sending.written:,} records before it were"
        raise click.ClickException(f"{problem}; {before} written")
    if sending.failed or sending.bad:
        raise click.ClickException(f"{sending.failed + sending.bad:,} records were not written, {sending.written:,} were")
    if sys.stderr.isatty() and not click.get_current_context().meta.get(JSON_OUTPUT):
        read = "" if source is None else f"({bytes_text(source.done)}) "
        speed = rate_text(sending.sent / max(seconds, 1e-3))
        click.echo(
            f"{sending.sent:,} record{'' if sending.sent == 1 else 's'} {read}written to {topic} in {seconds:.1f} s, {speed}", err=True
        )


def _exit_interrupted(sending: RecordSender, topic: str, transactions: InputTransactions | None) -> NoReturn:
    from ottla.cli.produce.input import SendFailed

    if transactions is not None:
        aborted = transactions.abort()
        if sending.progress is not None:
            sending.progress.clear()
        click.echo(f"Interrupted: {aborted}", err=True)
        raise SystemExit(INTERRUPTED)
    with contextlib.suppress(SendFailed, TimeoutError, KeyboardInterrupt):
        sending.finish(INTERRUPT_FLUSH_MS)
    if sending.progress is not None:
        sending.progress.clear()
    lost = sending.sent - sending.written
    not_written = f", {lost:,} were not acknowledged" if lost else ""
    click.echo(f"Interrupted: {sending.written:,} records were written to {topic}{not_written}", err=True)
    raise SystemExit(INTERRUPTED)


def _dry_run(topic: str, read: Any, defaults: RecordDefaults, keep_going: bool, bootstrap: str) -> None:
    """Prints the records as JSON lines that `produce -i json` reads. Raises: ClickException."""
    import msgspec

    from ottla.cli.produce.sending import with_defaults

    with admin(bootstrap) as client:
        description = client.describe_topics([topic])[topic]
    if isinstance(description, KafkaError):
        click.echo(f"Warning: {' '.join(str(description).split())}", err=True)
    count = 0 if isinstance(description, KafkaError) else len(description.partitions)
    bad: list[str] = []

    def complain(text: str) -> None:
        bad.append(text)
        if not keep_going:
            raise click.ClickException(text)
        click.echo(f"Error: {text}", err=True)

    records = tombstones = 0
    for chunk in read(complain):
        lines = []
        for number, record in zip(chunk.numbers, chunk.records, strict=True):
            value, key, headers, partition, timestamp_ms = with_defaults(record, defaults)
            if count and partition is not None and partition >= count:
                complain(f"line {number}: topic {topic} has {count} partitions; partition {partition} does not exist")
            shown = {"key": json_bytes(key), "value": json_bytes(value), "headers": [[name, json_bytes(one)] for name, one in headers]}
            shown |= {name: one for name, one in (("partition", partition), ("timestamp", timestamp_ms)) if one is not None}
            lines.append(shown)
            tombstones += value is None
        records += len(lines)
        sys.stdout.buffer.write(msgspec.json.Encoder().encode_lines(lines))
    sys.stdout.buffer.flush()
    times = f", each {defaults.each:,} times" if defaults.each > 1 else ""
    click.echo(f"Nothing was sent: {records:,} records, {tombstones:,} of them tombstones, would be sent to {topic}{times}", err=True)
    if bad:
        raise SystemExit(1)


def _input_format(topic: str, options: dict[str, Any], settings: dict[str, Any]) -> InputFormat:
    """Raises: UsageError, ClickException."""
    from ottla.cli.common.record_format import unescaped
    from ottla.cli.produce.input import NAMES, InputFormat

    key, value = parse_formats(options, topic)
    form, delimiter = options["form"], unescaped(options["delimiter"])
    ignore = frozenset(filter(None, (options["ignore"] or "").split(",")))
    if not delimiter or options["key_delimiter"] == "":
        raise click.UsageError("a delimiter needs at least one byte; to send a whole file as one record, use --file")
    if unknown := ignore - {*NAMES}:
        raise click.UsageError(f"--ignore: unknown field {sorted(unknown)[0]!r}; fields are {', '.join(NAMES)}")
    if form != "csv" and (options["columns"] or (form in ("text", "json") and (options["key_column"] or options["value_column"]))):
        raise click.UsageError("options for columns need -i csv")
    if form == "text" and ignore:
        raise click.UsageError("--ignore needs -i json or -i csv: text has no fields")
    if form != "text" and (options["key_delimiter"] is not None or options["empty_is_null"]):
        raise click.UsageError(f"-K and -Z need -i text: {form} has its own keys and nulls")
    null = None if options["null"] is None else unescaped(options["null"])
    if options["empty_is_null"]:
        null = b""
    return InputFormat(
        form, key, value, delimiter, None if options["key_delimiter"] is None else unescaped(options["key_delimiter"]), null,
        tuple(name.strip() for name in options["columns"].split(",")) if options["columns"] else (),
        options["key_column"], options["value_column"], ignore, int(settings.get("max_request_size", 1 << 20)),
    )  # fmt: skip


def _record_defaults(options: dict[str, Any]) -> RecordDefaults:
    from ottla.cli.produce.sending import RecordDefaults

    headers = []
    for text in options["headers"]:
        name, equals, value = text.partition("=")
        if not name:
            raise click.UsageError(f"-H expects NAME=VALUE, or NAME alone for null, not {text!r}")
        headers.append((name, value.encode() if equals else None))
    when = None if options["timestamp"] is None else time_ms(options["timestamp"], "--timestamp")
    return RecordDefaults(
        None if options["key"] is None else options["key"].encode(), tuple(headers), options["partition"], when, options["each"]
    )


def _codec(text: str) -> dict[str, Any]:
    codec, colon, level = text.partition(":")
    if codec not in CODECS or (colon and codec not in ("gzip", "lz4", "zstd")):
        raise click.UsageError(f"-z expects one of {', '.join(CODECS)}; gzip, lz4 and zstd may have a level, as zstd:9; not {text!r}")
    return {"compression_type": codec, **({f"compression_{codec}_level": level} if colon else {})}


def _transaction_settings(options: dict[str, Any]) -> dict[str, Any]:
    """Raises: UsageError."""
    from ottla.cli.produce.transactions import WHOLE_TIMEOUT_MS

    parts = [name for name in ("transaction_records", "transaction_duration") if options[name] is not None]
    if options["transactional_id"] is None:
        if parts:
            raise click.UsageError(f"--{parts[0].replace('_', '-')} needs --transactional-id")
        return {}
    if options["acks"] != "all":
        raise click.UsageError("--transactional-id needs --acks all")
    timeout = {} if parts else {"transaction_timeout_ms": WHOLE_TIMEOUT_MS}
    return {"transactional_id": options["transactional_id"], **timeout}


def _open(name: str, opened: contextlib.ExitStack) -> BinaryIO:
    if name == "-":
        return sys.stdin.buffer
    try:
        return opened.enter_context(open(name, "rb"))
    except OSError as error:
        raise click.ClickException(str(error)) from None


def _size(source: CountedInput) -> int | None:
    """Total size of the input in bytes, if all of it are files."""
    total = 0
    for _, file in source.files:
        try:
            status = os.fstat(file.fileno())
        except (OSError, ValueError):
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        total += status.st_size - (file.tell() if file.seekable() else 0)
    return total
