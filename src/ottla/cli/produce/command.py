"""`ottla produce`: lines, JSON, CSV or whole files become records.

How the input is understood is in `record_input`, how records are sent and failures are told in `produce_sending`. To a person a line shows
how far it is, and a sentence what was done; a pipe hears nothing but errors.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

import click

from ottla.cli.common.complete import topic_names
from ottla.cli.common.errors import admin, bootstrap_option, terminated, told
from ottla.cli.common.paths import LocalPath
from ottla.cli.common.record_options import client_settings, form_options, forms, setting_option

if TYPE_CHECKING:
    from ottla.cli.produce.input import Chunk, Counted, Reading
    from ottla.cli.produce.sending import Fixed, Sending

#: How long a topic that is not there yet may take to be created, and how long brokers may take to make room for more.
TOPIC_TIMEOUT_MS, ROOM_TIMEOUT_MS = 15_000, 120_000
#: How long what was sent before Ctrl-C is waited for.
LAST_MS = 10_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
INTERRUPTED = 130
EPILOG = r"""
\b
Examples:
  ottla produce orders < lines.txt            each line a value
  ottla produce orders -K : < lines.txt       KEY:VALUE
  ottla consume a -e -o json | ottla produce b -o json
  ottla produce orders -o csv --key-column id orders.csv
  ottla produce pictures -k logo --file logo.png
  echo tick | ottla produce load -n 100000 --rate 5k

Exit codes: 0 all was written, 1 something was not (its line is named), 2 asked wrongly, 130 interrupted.
""".replace(r"\b", "\b")


@click.command(name="produce", epilog=EPILOG)
@click.argument("topic", shell_complete=topic_names)
@click.argument("files", nargs=-1, type=LocalPath(exists=True, dir_okay=False, allow_dash=True), metavar="[FILE]...")
@click.option(
    "--file", "whole", multiple=True, type=LocalPath(exists=True, dir_okay=False), help="This file is one record; may be repeated."
)
@click.option(
    "-o",
    "--input",
    "form",
    type=click.Choice(["text", "json", "csv", "parquet", "arrow"]),
    default="text",
    show_default=True,
    help="How lines are read; or what files are.",
)
@click.option("-K", "--key-delimiter", metavar="TEXT", help="Split each line at its first TEXT into key and value; '\\t' is a tab.")
@click.option(
    "-D", "--delimiter", metavar="TEXT", default="\\n", show_default=True, help=r"What ends a record: text with \n, \t, \0, \xNN."
)
@click.option("-k", "--key", help="Key of every record that has none.")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Header of every record; NAME alone is null.")
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Partition of records that say none; otherwise the key decides.")
@click.option("--timestamp", metavar="TIME", help="Time of records that say none: milliseconds or 2026-01-31T12:00:00; otherwise now.")
@click.option("-Z", "empty_is_null", is_flag=True, help="Empty keys and values are null; a null value is a tombstone.")
@click.option("--null", metavar="TEXT", help="Keys and values that read TEXT are null.")
@form_options
@click.option("--key-column", metavar="NAME", help="CSV, Parquet: the column of keys.  [default: key]")
@click.option("--value-column", metavar="NAME", help="CSV, Parquet: the column of values; otherwise all columns as JSON.  [default: value]")
@click.option("--columns", metavar="NAME,...", help="CSV: names of the columns, for files whose first line has none.")
@click.option("--ignore", metavar="NAME,...", help="JSON and CSV: do not take these from the input, such as partition,timestamp.")
@click.option("-z", "--compression", metavar="CODEC[:LEVEL]", default="none", show_default=True, help=f"One of {', '.join(CODECS)}.")
@click.option(
    "--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True,
    help="Who must have a record: all in-sync replicas, the leader, nobody.",
)  # fmt: skip
@click.option("-n", "--each", type=click.IntRange(min=1), default=1, metavar="N", help="Send each record N times, for tests.")
@click.option("--rate", metavar="N", help="At most N records a second; 10k and 1M are understood.")
@click.option("--keep-going", is_flag=True, help="Tell what cannot be read or written, and go on; the exit code is 1 all the same.")
@click.option("--dry-run", is_flag=True, help="Send nothing: print the records as JSON lines.")
@setting_option
@bootstrap_option
def command(topic: str, files: tuple[str, ...], whole: tuple[str, ...], bootstrap: str, settings: tuple[str, ...], **asked: Any) -> None:
    """Send records to TOPIC: the lines of FILEs, or of standard input."""
    from ottla.cli.produce.input import BadLine, Counted, chunks, whole_files
    from ottla.client.options import ProducerOptions

    if whole and (files or asked["form"] != "text" or asked["key_delimiter"] is not None):
        raise click.UsageError("--file makes a record of a whole file: no other files, -o or -K with it")
    ours = {"bootstrap_servers": bootstrap, "client_id": "ottla-cli", "acks": asked["acks"], **_codec(asked["compression"])}
    ours |= client_settings(ProducerOptions, settings)
    reading, fixed, rate = _reading(topic, asked, ours), _fixed(asked), _rate(asked["rate"])
    with contextlib.ExitStack() as opened:
        source = None if whole else Counted([(name, _opened(name, opened)) for name in files or ("-",)])
        if source is not None and not files and sys.stdin.isatty() and sys.stderr.isatty():
            click.echo("Each line is a record; Ctrl-D ends.", err=True)

        def read(complain: Any) -> Iterable[Chunk]:
            return whole_files(whole, reading.value) if source is None else chunks(source, reading, complain)

        with told():
            try:
                if asked["dry_run"]:
                    _dry_run(topic, read, fixed, asked["keep_going"], bootstrap)
                else:
                    _send(topic, read, fixed, rate, asked, ours, source)
            except BadLine as error:
                raise click.ClickException(str(error)) from None


def _send(
    topic: str, read: Any, fixed: Fixed, rate: float | None, asked: dict[str, Any], settings: dict[str, Any], source: Counted | None
) -> None:
    from ottla.cli.common.progress import terminal_progress
    from ottla.cli.produce.input import BadLine
    from ottla.cli.produce.sending import Failed, Sending
    from ottla.client.sync.producer import Producer
    from ottla.wire.errors import KafkaError, UnknownTopicOrPartition

    # Who types a wrong address should not have to wait until a producer's patience is over; a topic that is missing may be created.
    with admin(settings["bootstrap_servers"]) as asking:
        outcome = asking.describe_topics([topic])[topic]
        if isinstance(outcome, KafkaError) and not isinstance(outcome, UnknownTopicOrPartition):
            raise outcome
    settings.setdefault("max_block_ms", TOPIC_TIMEOUT_MS if isinstance(outcome, KafkaError) else ROOM_TIMEOUT_MS)
    began = time.monotonic()
    with Producer(**settings) as producer, terminated():
        kind = "line" if asked["delimiter"] == "\\n" and asked["form"] not in ("parquet", "arrow") else "record"
        sending = Sending(producer, topic, fixed, rate=rate, keep_going=asked["keep_going"], kind=kind)
        total = None if source is None else _size(source)
        sending.progress = terminal_progress(total) if total is not None or not sys.stdin.isatty() else None
        problem: str | None = None
        try:
            sending.send_all(read(sending.complain), source)
        except (Failed, BadLine) as error:
            problem = str(error)
        except KeyboardInterrupt:
            _interrupted(sending, topic)
        if problem is not None:
            # What was sent before is on its way: its outcome is told, too.
            with contextlib.suppress(Failed):
                sending.finish()
    if sending.progress is not None:
        sending.progress.wipe()
    _conclude(sending, topic, problem, source, time.monotonic() - began)


def _conclude(sending: Sending, topic: str, problem: str | None, source: Counted | None, seconds: float) -> None:
    """The last word. Raises: ClickException when something was not written."""
    from ottla.cli.common.progress import bytes_text, rate_text

    if problem is not None:
        before = "1 record before it was" if sending.written == 1 else f"{sending.written:,} records before it were"
        raise click.ClickException(f"{problem}; {before} written")
    if sending.failed or sending.bad:
        raise click.ClickException(f"{sending.failed + sending.bad:,} records were not written, {sending.written:,} were")
    if sys.stderr.isatty():
        read = "" if source is None else f"({bytes_text(source.done)}) "
        speed = rate_text(sending.sent / max(seconds, 1e-3))
        click.echo(
            f"{sending.sent:,} record{'' if sending.sent == 1 else 's'} {read}written to {topic} in {seconds:.1f} s, {speed}", err=True
        )


def _interrupted(sending: Sending, topic: str) -> NoReturn:
    from ottla.cli.produce.sending import Failed

    with contextlib.suppress(Failed, TimeoutError, KeyboardInterrupt):
        sending.finish(LAST_MS)
    if sending.progress is not None:
        sending.progress.wipe()
    lost = sending.sent - sending.written
    not_written = f", {lost:,} were not acknowledged" if lost else ""
    click.echo(f"Interrupted: {sending.written:,} records were written to {topic}{not_written}", err=True)
    raise SystemExit(INTERRUPTED)


def _dry_run(topic: str, read: Any, fixed: Fixed, keep_going: bool, bootstrap: str) -> None:
    """Print what would be sent, in the form in which it can be. Raises: ClickException."""
    import msgspec

    from ottla.cli.common.errors import json_bytes
    from ottla.cli.produce.sending import completed
    from ottla.wire.errors import KafkaError

    with admin(bootstrap) as asking:
        found = asking.describe_topics([topic])[topic]
    if isinstance(found, KafkaError):
        click.echo(f"Warning: {' '.join(str(found).split())}", err=True)
    count = 0 if isinstance(found, KafkaError) else len(found.partitions)
    bad: list[str] = []

    def complain(text: str) -> None:
        bad.append(text)
        if not keep_going:
            raise click.ClickException(text)
        click.echo(f"Error: {text}", err=True)

    records = tombstones = 0
    for chunk in read(complain):
        lines = []
        for number, given in zip(chunk.numbers, chunk.records, strict=True):
            value, key, headers, partition, timestamp_ms = completed(given, fixed)
            if count and partition is not None and partition >= count:
                complain(f"line {number}: topic {topic} has {count} partitions, no partition {partition}")
            shown = {"key": json_bytes(key), "value": json_bytes(value), "headers": [[name, json_bytes(one)] for name, one in headers]}
            shown |= {name: one for name, one in (("partition", partition), ("timestamp", timestamp_ms)) if one is not None}
            lines.append(shown)
            tombstones += value is None
        records += len(lines)
        sys.stdout.buffer.write(msgspec.json.Encoder().encode_lines(lines))
    sys.stdout.buffer.flush()
    times = f", each {fixed.each:,} times" if fixed.each > 1 else ""
    click.echo(f"Nothing was sent: {records:,} records, {tombstones:,} of them tombstones, would go to {topic}{times}", err=True)
    if bad:
        raise SystemExit(1)


# -- what is asked for


def _reading(topic: str, asked: dict[str, Any], settings: dict[str, Any]) -> Reading:
    """Raises: UsageError, ClickException."""
    from ottla.cli.common.record_format import unescaped
    from ottla.cli.produce.input import NAMES, Reading

    key, value = forms(asked, topic)
    form, delimiter = asked["form"], unescaped(asked["delimiter"])
    ignore = frozenset(filter(None, (asked["ignore"] or "").split(",")))
    if not delimiter or asked["key_delimiter"] == "":
        raise click.UsageError("a delimiter has at least one byte; for a whole file as one record there is --file")
    if unknown := ignore - {*NAMES}:
        raise click.UsageError(f"--ignore: there is no {sorted(unknown)[0]!r}; there are {', '.join(NAMES)}")
    if form != "csv" and (asked["columns"] or (form in ("text", "json") and (asked["key_column"] or asked["value_column"]))):
        raise click.UsageError("columns are those of CSV: add -o csv")
    if form == "text" and ignore:
        raise click.UsageError("--ignore is for -o json and -o csv: text says no such thing")
    if form != "text" and (asked["key_delimiter"] is not None or asked["empty_is_null"]):
        raise click.UsageError(f"-K and -Z are for text: {form} says itself what is key and what is null")
    null = None if asked["null"] is None else unescaped(asked["null"])
    if asked["empty_is_null"]:
        null = b""
    return Reading(
        form, key, value, delimiter, None if asked["key_delimiter"] is None else unescaped(asked["key_delimiter"]), null,
        tuple(name.strip() for name in asked["columns"].split(",")) if asked["columns"] else (), asked["key_column"], asked["value_column"],
        ignore, int(settings.get("max_request_size", 1 << 20)),
    )  # fmt: skip


def _fixed(asked: dict[str, Any]) -> Fixed:
    from ottla.cli.common.arguments import time_ms
    from ottla.cli.produce.sending import Fixed

    headers = []
    for text in asked["headers"]:
        name, equals, value = text.partition("=")
        if not name:
            raise click.UsageError(f"-H expects NAME=VALUE, or NAME alone for null, not {text!r}")
        headers.append((name, value.encode() if equals else None))
    when = None if asked["timestamp"] is None else time_ms(asked["timestamp"], "--timestamp")
    return Fixed(None if asked["key"] is None else asked["key"].encode(), tuple(headers), asked["partition"], when, asked["each"])


def _rate(text: str | None) -> float | None:
    from ottla.cli.common.rate_limit import rate

    try:
        return None if text is None else rate(text, "--rate")
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _codec(text: str) -> dict[str, Any]:
    codec, colon, level = text.partition(":")
    levelled = codec in ("gzip", "lz4", "zstd")
    if codec not in CODECS or (colon and not levelled):
        raise click.UsageError(
            f"-z expects one of {', '.join(CODECS)}, and behind gzip, lz4 and zstd perhaps a level as in zstd:9, not {text!r}"
        )
    return {"compression_type": codec, **({f"compression_{codec}_level": level} if colon else {})}


def _opened(name: str, opened: contextlib.ExitStack) -> BinaryIO:
    if name == "-":
        return sys.stdin.buffer
    try:
        return opened.enter_context(open(name, "rb"))
    except OSError as error:
        raise click.ClickException(str(error)) from None


def _size(source: Counted) -> int | None:
    """Bytes of all the input, if they are files."""
    total = 0
    for _, file in source.files:
        try:
            found = os.fstat(file.fileno())
        except (OSError, ValueError):
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        total += found.st_size - (file.tell() if file.seekable() else 0)
    return total
