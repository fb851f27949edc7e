"""`ottla consume`: records of topics, whole or in parts, to standard output, in many forms.

The command line is made into a plan here; what is read is in `consume_parts` and `consume_group`, what is printed in `consume_output`. The
forms in which records are written are those in which `ottla produce` reads them.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.common.complete import group_names, topic_names
from ottla.cli.common.errors import admin, bootstrap_option, terminated, told
from ottla.cli.common.paths import LocalPath
from ottla.cli.common.record_options import client_settings, form_options, forms, setting_option

if TYPE_CHECKING:
    from ottla.cli.consume.output import Output
    from ottla.cli.consume.printer import Printer
    from ottla.cli.consume.ranges import Read
    from ottla.client.fetch.ranges import Range

INTERRUPTED = 130
#: How old what is known of topics may be, before new partitions are noticed.
METADATA_MS = 30_000
#: Where a group begins that has no offsets: at the start unless told, as in `ottla.consume`, since a group is there to miss nothing.
RESETS = {"beginning": "earliest", "start": "earliest", "earliest": "earliest", "end": "latest", "latest": "latest"}
#: All partitions together may have about so many bytes fetched that were not printed yet.
FETCHED_BYTES, FETCHED_LEAST, FETCHED_MOST = 64 << 20, 64 << 10, 1 << 20
EPILOG = r"""
\b
Ranges, for -O and behind a topic's @:
  FROM:TO, FROM, :TO  with  start  end  100  -10 (before the end)  +10 (after
  the start; in TO, after FROM)  @-1h  @2026-01-31T12:00  @MILLISECONDS
  orders@-1h:end   orders/0,2-4@100:200   -O -10: (the last ten and on)

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

Exit codes: 0 done (also by Ctrl-C where there is no end, and when whoever read the output went away), 1 failed, 2 asked wrongly,
130 interrupted before the end of the range.
""".replace(r"\b", "\b")


@click.command(name="consume", epilog=EPILOG)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC[/PARTITIONS][@FROM:TO]...", shell_complete=topic_names)
@click.option("-r", "--regex", is_flag=True, help="Topics are regular expressions that whole names must match.")
@click.option("--from-beginning", is_flag=True, help="Begin at the start of the log; the same as -O beginning.")
@click.option(
    "-O", "--offset", metavar="RANGE", help="Where to begin, and perhaps to stop: a range, see below.  [default: end; with -g: beginning]"
)
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="The last N records of all partitions together, by their times.")
@click.option("-F", "--follow", is_flag=True, help="With --tail: go on with what comes then.")
@click.option("-p", "--partition", "partitions", multiple=True, type=click.IntRange(min=0), help="Only this partition; may be repeated.")
@click.option(
    "-g",
    "--group",
    metavar="GROUP",
    shell_complete=group_names,
    help="Share the topics with the other members of this group, and commit what was printed.",
)
@click.option("-n", "-c", "--max", "limit", type=click.IntRange(min=0), help="Stop after so many records.")
@click.option("-e", "--exit", "to_end", is_flag=True, help="Stop at what is the end of the log now.")
@click.option("--filter", "filters", multiple=True, metavar="EXPR", help="Only records that fit, see below; of several, all must fit.")
@click.option("--rate", metavar="N", help="At most N records a second; 10k and 1M are understood.")
@click.option("--read-committed", is_flag=True, help="Leave out records of open and aborted transactions.")
@click.option(
    "-o", "--output", "form", type=click.Choice(["text", "json", "csv", "raw", "parquet"]), default=None,
    help="text (values, a line each), json (lines that `produce -o json` takes), csv, raw (values and nothing else), parquet.",
)  # fmt: skip
@click.option("-f", "--format", metavar="FORMAT", help=r"How to print a record, for example '%p %o %k %s\n'; see below.")
@click.option(
    "--show", metavar="COLUMN,...",
    help="Columns: topic, partition, offset, timestamp, time, timestamp_type, key, value, headers, header.NAME, .json.path, key.json.path.",
)  # fmt: skip
@form_options
@click.option("-D", "--delimiter", metavar="TEXT", help=r"What ends a record in text and raw.  [default: \n, nothing with raw]")
@click.option("-Z", "null", flag_value="NULL", help="Print null keys and values as NULL.")
@click.option("--null", "null", metavar="TEXT", help="Print null keys and values as TEXT; without it, as nothing.")
@click.option("--heading/--no-heading", default=True, help="Names of the columns in the first line of CSV.")
@click.option("--parquet", metavar="FILE", type=LocalPath(dir_okay=False), help="Write to this Parquet file.")
@click.option(
    "--color", type=click.Choice(["auto", "always", "never"]), default="auto", help="Colours: on a terminal, unless NO_COLOR is set."
)
@click.option("--keep-going", is_flag=True, help="Warn of records that their format cannot show, and leave them out.")
@setting_option
@bootstrap_option
def command(
    topics: tuple[str, ...], regex: bool, bootstrap: str, settings: tuple[str, ...], group: str | None, to_end: bool, **asked: Any
) -> None:
    """Print the records of topics as they come.

    Without -g, begin at the end: what comes from now on. With -g, begin where the group is, and at the start of partitions that it has no
    offsets of yet, unless -O end says otherwise.
    """
    from ottla.client.options import ConsumerOptions

    printer = _printer(asked)
    ours: dict[str, Any] = {
        "bootstrap_servers": bootstrap, "client_id": "ottla-cli", "allow_auto_create_topics": False, "default_api_timeout_ms": 30_000,
        "metadata_max_age_ms": METADATA_MS, "isolation_level": "read_committed" if asked["read_committed"] else "read_uncommitted",
    }  # fmt: skip
    ours |= client_settings(ConsumerOptions, settings)
    if group is not None:
        _with_group(topics, regex, group, to_end, asked, printer, ours)
        return
    # What retention takes away before it is read is passed over.
    ours.setdefault("auto_offset_reset", "earliest")
    reads, patterns = _asked_for(topics, regex, to_end, asked)
    _without_group(reads, patterns, asked, printer, ours)


def _without_group(
    reads: list[Read], patterns: list[tuple[re.Pattern[str], Range]], asked: dict[str, Any], printer: Printer, settings: dict[str, Any]
) -> None:
    from ottla.cli.common.progress import terminal_progress
    from ottla.cli.consume.ranges import Parts, Read, matching
    from ottla.client.sync.consumer import Consumer

    bootstrap = settings["bootstrap_servers"]
    names = [pattern for pattern, _ in patterns]

    def match() -> dict[str, int]:
        with admin(bootstrap) as asking:
            found = matching(names, (topic.name for topic in asking.list_topics()))
            return {topic: len(one.partitions) for topic, one in asking.describe_topics(found).items() if hasattr(one, "partitions")}

    with told():
        with admin(bootstrap) as asking:
            counts = {read.topic: 0 for read in reads}
            counts = {topic: len(asking.describe_topic(topic).partitions) for topic in counts}
        if patterns:
            counts = match()
            if not counts:
                raise click.ClickException(f"no topic matches {' or '.join(name.pattern for name in names)}")
            reads = [Read(topic, None, next(where for one, where in patterns if one.fullmatch(topic))) for topic in counts]
        share = FETCHED_BYTES // max(2 * sum(counts.values()), 1)
        settings.setdefault("max_partition_fetch_bytes", min(max(share, FETCHED_LEAST), FETCHED_MOST))
        with Consumer(**settings) as consumer, _closing(printer.output):
            parts = Parts(consumer, printer)
            parts.begin(reads, counts)
            total = parts.total
            if total is not None and not _prints_to_terminal():
                printer.progress = terminal_progress(total)
            try:
                parts.read(match if patterns and total is None else None, asked["tail"])
                if asked["follow"]:
                    parts.follow()
            except KeyboardInterrupt:
                # The usual way to end what has no end. Of what has one, not all was read. Parquet files are made whole in both cases.
                if total is not None:
                    raise SystemExit(INTERRUPTED) from None
            finally:
                if printer.progress is not None:
                    printer.progress.wipe()


def _with_group(
    topics: Sequence[str], regex: bool, group: str, to_end: bool, asked: dict[str, Any], printer: Printer, settings: dict[str, Any]
) -> None:
    from ottla.cli.consume.group import consume

    where = "beginning" if asked["from_beginning"] else asked["offset"] or "beginning"
    if not group:
        raise click.UsageError("-g needs the name of a group")
    if asked["partitions"] or where not in RESETS or any("@" in topic or "/" in topic for topic in topics if not regex):
        raise click.UsageError("with -g the group decides about partitions and offsets: no -p, no ranges, and -O only beginning or end")
    if asked["tail"] is not None or asked["form"] == "parquet":
        raise click.UsageError("with -g neither --tail nor Parquet: what was printed is committed as it goes, and those come at the end")
    named = re.compile("|".join(f"(?:{_pattern(topic).pattern})" for topic in topics)) if regex else list(dict.fromkeys(topics))
    with told():
        if not isinstance(named, re.Pattern):
            with admin(settings["bootstrap_servers"]) as asking:
                for topic in named:
                    asking.describe_topic(topic)
        with _closing(printer.output):
            if asked["offset"] or asked["from_beginning"] or "auto_offset_reset" not in settings:
                settings = {**settings, "auto_offset_reset": RESETS[where]}
            consume(named, group, printer, to_end, settings)


def _printer(asked: dict[str, Any]) -> Printer:
    """What prints. Raises: UsageError, ClickException."""
    from ottla.cli.common.rate_limit import rate
    from ottla.cli.common.record_format import FormatError
    from ottla.cli.consume.filter import filtered
    from ottla.cli.consume.output import Wanted, output
    from ottla.cli.consume.printer import Printer

    if asked["parquet"] is not None:
        if asked["form"] not in (None, "parquet"):
            raise click.UsageError(f"--parquet writes Parquet, not -o {asked['form']}")
        asked["form"] = "parquet"
    if asked["format"] is not None and (asked["form"] not in (None, "text") or asked["show"] or asked["delimiter"] is not None):
        raise click.UsageError("-f says all of how a record is printed: no -o, --show or -D with it")
    asked["form"] = asked["form"] or "text"
    key, value = forms(asked)
    try:
        wanted = Wanted(
            asked["form"], key, value, asked["format"], asked["show"], asked["delimiter"], asked["null"] or "", asked["heading"],
            asked["parquet"], asked["color"],
        )  # fmt: skip
        keep = filtered(asked["filters"])
        per_second = None if asked["rate"] is None else rate(asked["rate"], "--rate")
        out = output(wanted)
    except FormatError as error:
        raise click.UsageError(f"-f: {error}") from None
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except (ImportError, OSError) as error:
        raise click.ClickException(str(error)) from None
    return Printer(out, keep=keep, limit=asked["limit"], rate=per_second, keep_going=asked["keep_going"])


def _asked_for(
    topics: Sequence[str], regex: bool, to_end: bool, asked: dict[str, Any]
) -> tuple[list[Read], list[tuple[re.Pattern[str], Range]]]:
    """The parts of topics, or the patterns of topics with their range. Raises: UsageError."""
    from ottla.cli.consume.ranges import Read
    from ottla.client.fetch.ranges import END, BadRange, Bound, Kind, Range, parse_part, parse_range

    now_ms = int(time.time() * 1000)
    tail, offset = asked["tail"], asked["offset"]
    if asked["from_beginning"] and offset is not None:
        raise click.UsageError("--from-beginning is -O beginning: one of them is enough")
    if tail is not None and (offset is not None or asked["from_beginning"]):
        raise click.UsageError("--tail says where to begin: no -O and no --from-beginning with it")
    if asked["follow"] and (tail is None or to_end):
        raise click.UsageError("--follow goes with --tail, and not with -e; anything else goes on by itself unless it has an end")
    try:
        given = parse_range("beginning" if asked["from_beginning"] else offset or "end", now_ms)
        if tail is not None:
            given = Range(Bound(Kind.BEFORE_END, tail), END)
        if to_end and given.last is None:
            given = given._replace(last=END)
        if regex:
            if asked["partitions"]:
                raise click.UsageError("-p chooses partitions of topics that are named, not of a pattern's")
            return [], [(_pattern(topic), given) for topic in topics]
        reads = []
        for topic in topics:
            part = parse_part(topic, now_ms)
            numbers = part.partitions if part.partitions is not None else tuple(sorted(set(asked["partitions"]))) or None
            own = part.range if "@" in topic else given
            if "@" in topic and tail is not None:
                raise click.UsageError(f"--tail says where to begin, and so does {topic}")
            reads.append(Read(part.topic, numbers, own._replace(last=END) if to_end and own.last is None else own))
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
    """Ends the output in good order, also when somebody else asks the process to end."""
    try:
        with terminated():
            yield
    finally:
        output.close()
