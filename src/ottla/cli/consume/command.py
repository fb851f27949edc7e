"""`ottla consume`: prints the records of topics or of ranges of them.

This module parses the command line. `consume.ranges` and `consume.group` read records, `consume.output` formats them. `ottla produce` reads
the same formats.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

import ottla
from ottla.cli.common.complete import group_names, topic_names
from ottla.cli.common.errors import admin, bootstrap_option, reporting_errors, sigterm_as_interrupt
from ottla.cli.common.lazy import INTERRUPTED
from ottla.cli.common.paths import LocalPath
from ottla.cli.common.progress import terminal_progress
from ottla.cli.common.rate_limit import parse_rate
from ottla.cli.common.record_options import client_settings, format_options, parse_formats, setting_option
from ottla.cli.topic.lookup import describe_topics
from ottla.client.fetch.ranges import END, BadRange, Bound, BoundKind, Range, parse_part, parse_range
from ottla.client.options import ConsumerOptions

if TYPE_CHECKING:
    from ottla.cli.consume.output import Output
    from ottla.cli.consume.printer import Printer
    from ottla.cli.consume.ranges import TopicRange

#: metadata.max.age.ms: limits the time until new partitions are discovered.
METADATA_MS = 30_000
#: -O to auto.offset.reset of a group. The default is beginning, as in `ottla.consume`, so that a group misses no records.
RESETS = {"beginning": "earliest", "start": "earliest", "earliest": "earliest", "end": "latest", "latest": "latest"}
#: Size of fetched but unprinted records: of all partitions together about, of one partition at least and at most.
FETCHED_BYTES, FETCHED_LEAST, FETCHED_MOST = 64 << 20, 64 << 10, 1 << 20
#: Output formats of -o.
OUTPUTS = ("text", "json", "csv", "raw", "parquet")
EPILOG = r"""
\b
Ranges, for -O and after a topic's @:
  FROM:TO, FROM, :TO  with  start  end  100  -10 (before the end)  +10 (after
  the start; in TO, after FROM)  @-1h  @2026-01-31T12:00  @MILLISECONDS
  orders@-1h:end   orders/0,2-4@100:200   -O -10: (the last ten, then new ones)

\b
Tokens of -f:
  %t topic  %p partition  %o offset  %T timestamp in ms  %T{iso}  %T{local}
  %T{%H:%M:%S}  %k key  %K key size  %s value  %S value size  %R value size
  as four bytes  %h headers  %h{NAME}  %H header count  %i number of the
  record  %y create or append  %s{hex}  %k{json}  %s{.json.path[0]}  %%
  \n  \t  \r  \0  \xNN  \uNNNN

\b
Filters:
  --filter 'key = K-17'   --filter 'value ~ "time ?out"'
  --filter '.amount >= 100 and header.level != debug'
  --filter 'not (.items[*].sku = A1 or .test)'

Exit codes: 0 done (also after Ctrl-C without an end of the range, and if the output pipe is closed), 1 failed, 2 usage error,
130 interrupted before the end of the range.
""".replace(r"\b", "\b")


@click.command(name="consume", epilog=EPILOG)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC[/PARTITIONS][@FROM:TO]...", shell_complete=topic_names)
@click.option("-r", "--regex", is_flag=True, help="Topics are regular expressions that match whole names.")
@click.option("--from-beginning", is_flag=True, help="Begin at the start of the log, like -O beginning.")
@click.option("-O", "--offset", metavar="RANGE", help="Range of offsets or times, see below. [default: end; with -g: beginning]")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Print the last N records of all partitions, by timestamp.")
@click.option("-F", "--follow", is_flag=True, help="With --tail: continue with new records.")
@click.option("-p", "--partition", "partitions", multiple=True, type=click.IntRange(min=0), help="Only this partition; repeatable.")
@click.option(
    "-g",
    "--group",
    metavar="GROUP",
    shell_complete=group_names,
    help="Read as a member of this group, and commit the offsets of printed records.",
)
@click.option("-n", "-c", "--max", "limit", type=click.IntRange(min=0), help="Maximum number of records.")
@click.option("-e", "--exit", "to_end", is_flag=True, help="Stop at the current end of the log.")
@click.option("--filter", "filters", multiple=True, metavar="EXPR", help="Only records that match, see below; repeatable, all must match.")
@click.option("--rate", metavar="N", help="Limit in records per second, such as 500, 10k or 1M.")
@click.option("--read-committed", is_flag=True, help="Omit records of open and aborted transactions.")
@click.option(
    "-o", "--output", "form", type=click.Choice(OUTPUTS), default=None,
    help="Output format: text (a value per line), json (lines for `produce -i json`), csv, raw (values only), parquet.",
)  # fmt: skip
@click.option("-f", "--format", metavar="FORMAT", help=r"Format of a record, such as '%p %o %k %s\n'; see below.")
@click.option(
    "--show", metavar="COLUMN,...",
    help="Columns: topic, partition, offset, timestamp, time, timestamp_type, key, value, headers, header.NAME, .json.path, key.json.path.",
)  # fmt: skip
@format_options
@click.option("-D", "--delimiter", metavar="TEXT", help=r"End of a record in text and raw. [default: \n, empty with raw]")
@click.option("-Z", "null", flag_value="NULL", help="Print null keys and values as NULL.")
@click.option("--null", "null", metavar="TEXT", help="Print null keys and values as TEXT. [default: empty]")
@click.option("--heading/--no-heading", default=True, help="Print column names in the first line of CSV.")
@click.option("--parquet", metavar="FILE", type=LocalPath(dir_okay=False), help="Write a Parquet file.")
@click.option(
    "--color", type=click.Choice(["auto", "always", "never"]), default="auto", help="Use colours; auto: on a terminal without NO_COLOR."
)
@click.option("--keep-going", is_flag=True, help="Skip records that do not fit their format, with a warning.")
@setting_option
@bootstrap_option
def command(
    topics: tuple[str, ...], regex: bool, bootstrap: str, settings: tuple[str, ...], group: str | None, to_end: bool, **options: Any
) -> None:
    """Print the records of topics.

    Without -g, begin at the log end: print new records. With -g, begin at the group's committed offsets, and at the log start of
    partitions without one; -O end begins at their end.
    """
    printer = _printer(options)
    ours: dict[str, Any] = {
        "bootstrap_servers": bootstrap, "client_id": "ottla-cli", "allow_auto_create_topics": False, "default_api_timeout_ms": 30_000,
        "metadata_max_age_ms": METADATA_MS, "isolation_level": "read_committed" if options["read_committed"] else "read_uncommitted",
    }  # fmt: skip
    ours |= client_settings(ConsumerOptions, settings)
    if group is not None:
        _with_group(topics, regex, group, to_end, options, printer, ours)
        return
    # If retention deletes records before they are read, continue with the oldest one left.
    ours.setdefault("auto_offset_reset", "earliest")
    reads, patterns = _topic_ranges(topics, regex, to_end, options)
    _without_group(reads, patterns, options, printer, ours)


def _without_group(
    reads: list[TopicRange],
    patterns: list[tuple[re.Pattern[str], Range]],
    options: dict[str, Any],
    printer: Printer,
    settings: dict[str, Any],
) -> None:
    from ottla.cli.consume.ranges import RangeConsumer, TopicRange, matching

    bootstrap = settings["bootstrap_servers"]
    names = [pattern for pattern, _ in patterns]

    def match() -> dict[str, int]:
        with admin(bootstrap) as client:
            found = matching(names, (topic.name for topic in client.list_topics()))
            return {topic: len(one.partitions) for topic, one in client.describe_topics(found).items() if hasattr(one, "partitions")}

    with reporting_errors():
        with admin(bootstrap) as client:
            counts = {name: len(topic.partitions) for name, topic in describe_topics(client, (read.topic for read in reads)).items()}
        if patterns:
            counts = match()
            if not counts:
                raise click.ClickException(f"no topic matches {' or '.join(name.pattern for name in names)}")
            reads = [TopicRange(topic, None, next(where for one, where in patterns if one.fullmatch(topic))) for topic in counts]
        share = FETCHED_BYTES // max(2 * sum(counts.values()), 1)
        settings.setdefault("max_partition_fetch_bytes", min(max(share, FETCHED_LEAST), FETCHED_MOST))
        with ottla.Consumer(**settings) as consumer, _closing(printer.output):
            parts = RangeConsumer(consumer, printer)
            parts.begin(reads, counts)
            total = parts.total
            if total is not None and not _prints_to_terminal():
                printer.progress = terminal_progress(total)
            try:
                parts.read(match if patterns and total is None else None, options["tail"])
                if options["follow"]:
                    parts.follow()
            except KeyboardInterrupt:
                # The usual end of an unbounded range, but a bounded one is incomplete. Parquet files are completed in both cases.
                if total is not None:
                    raise SystemExit(INTERRUPTED) from None
            finally:
                if printer.progress is not None:
                    printer.progress.clear()


def _with_group(
    topics: Sequence[str], regex: bool, group: str, to_end: bool, options: dict[str, Any], printer: Printer, settings: dict[str, Any]
) -> None:
    from ottla.cli.consume.group import consume

    where = "beginning" if options["from_beginning"] else options["offset"] or "beginning"
    if not group:
        raise click.UsageError("-g needs the name of a group")
    if options["partitions"] or where not in RESETS or any("@" in topic or "/" in topic for topic in topics if not regex):
        raise click.UsageError("-g cannot be combined with -p and ranges, and allows only -O beginning and -O end")
    if options["tail"] is not None or options["form"] == "parquet":
        raise click.UsageError("-g cannot be combined with --tail and Parquet: they print at the end, but offsets are committed meanwhile")
    subscription = re.compile("|".join(f"(?:{_pattern(topic).pattern})" for topic in topics)) if regex else list(dict.fromkeys(topics))
    with reporting_errors():
        if not isinstance(subscription, re.Pattern):
            with admin(settings["bootstrap_servers"]) as client:
                describe_topics(client, subscription)
        with _closing(printer.output):
            if options["offset"] or options["from_beginning"] or "auto_offset_reset" not in settings:
                settings = {**settings, "auto_offset_reset": RESETS[where]}
            consume(subscription, group, printer, to_end, settings)


def _printer(options: dict[str, Any]) -> Printer:
    """Raises: UsageError, ClickException."""
    from ottla.cli.common.record_format import FormatError
    from ottla.cli.consume.output import OutputOptions, output
    from ottla.cli.consume.printer import Printer
    from ottla.client.values.record_filter import FilterError, parse_filters

    if options["parquet"] is not None:
        if options["form"] not in (None, "parquet"):
            raise click.UsageError(f"--parquet cannot be combined with -o {options['form']}")
        options["form"] = "parquet"
    if options["format"] in OUTPUTS:
        raise click.UsageError(
            f"-f {options['format']} would print this word for each record; for {options['format']} use -o {options['format']}"
        )
    if options["format"] is not None and (options["form"] not in (None, "text") or options["show"] or options["delimiter"] is not None):
        raise click.UsageError("-f cannot be combined with -o, --show and -D")
    options["form"] = options["form"] or "text"
    key, value = parse_formats(options)
    try:
        output_options = OutputOptions(
            options["form"], key, value, options["format"], options["show"], options["delimiter"], options["null"] or "",
            options["heading"], options["parquet"], options["color"],
        )  # fmt: skip
        keep = parse_filters(options["filters"])
        per_second = None if options["rate"] is None else parse_rate(options["rate"], "--rate")
        out = output(output_options)
    except FormatError as error:
        raise click.UsageError(f"-f: {error}") from None
    except FilterError as error:
        raise click.UsageError(f"--filter {error}") from None
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except (ImportError, OSError) as error:
        raise click.ClickException(str(error)) from None
    return Printer(out, keep=keep, limit=options["limit"], rate=per_second, keep_going=options["keep_going"])


def _topic_ranges(
    topics: Sequence[str], regex: bool, to_end: bool, options: dict[str, Any]
) -> tuple[list[TopicRange], list[tuple[re.Pattern[str], Range]]]:
    """The ranges of topics, or patterns of topics with a range. Raises: UsageError."""
    from ottla.cli.consume.ranges import TopicRange

    now_ms = int(time.time() * 1000)
    tail, offset = options["tail"], options["offset"]
    if options["from_beginning"] and offset is not None:
        raise click.UsageError("--from-beginning cannot be combined with -O: it is -O beginning")
    if tail is not None and (offset is not None or options["from_beginning"]):
        raise click.UsageError("--tail cannot be combined with -O and --from-beginning")
    if options["follow"] and (tail is None or to_end):
        raise click.UsageError("--follow needs --tail and excludes -e; without --tail, consume follows unless the range has an end")
    try:
        default = parse_range("beginning" if options["from_beginning"] else offset or "end", now_ms)
        if tail is not None:
            default = Range(Bound(BoundKind.BEFORE_END, tail), END)
        if to_end and default.last is None:
            default = default._replace(last=END)
        if regex:
            if options["partitions"]:
                raise click.UsageError("-p cannot be combined with -r")
            return [], [(_pattern(topic), default) for topic in topics]
        reads = []
        for topic in topics:
            part = parse_part(topic, now_ms)
            numbers = part.partitions if part.partitions is not None else tuple(sorted(set(options["partitions"]))) or None
            own = part.range if "@" in topic else default
            if "@" in topic and tail is not None:
                raise click.UsageError(f"--tail cannot be combined with the range in {topic}")
            reads.append(TopicRange(part.topic, numbers, own._replace(last=END) if to_end and own.last is None else own))
    except BadRange as error:
        raise click.UsageError(str(error)) from None
    return reads, []


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise click.UsageError(f"-r: {text!r} is not a regular expression: {error}") from None


def _prints_to_terminal() -> bool:
    import sys

    return sys.stdout.isatty()


@contextlib.contextmanager
def _closing(output: Output) -> Iterator[None]:
    """Closes the output, also after SIGTERM."""
    try:
        with sigterm_as_interrupt():
            yield
    finally:
        output.close()
