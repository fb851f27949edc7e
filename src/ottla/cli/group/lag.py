"""`ottla group lag`: how far behind groups are, in records and in time; once, or again and again (`--watch`).

To a person a table per group, which `--watch` draws anew in place; to a pipe a line per partition; with `-o json` or `yaml` one document,
or with `--watch` one line, or document, per group and reading. Watching goes on when brokers go away, and says so on stderr. What `-o json`
prints, `ottla group reset --from-file` takes.

    BEHIND     how long ago the first unread record was written       in a pipe milliseconds
    READ/S     records committed per second since the last reading, and written in the same time
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ottla.cli.common import tables
from ottla.cli.common.arguments import duration_text
from ottla.cli.common.complete import group_names
from ottla.cli.common.connection import admin as connected
from ottla.cli.common.connection import bootstrap_option
from ottla.cli.common.errors import told
from ottla.cli.common.output_formats import Form, fields, output_option
from ottla.cli.common.tables import Column, Row
from ottla.cli.group.errors import no_group

if TYPE_CHECKING:
    from ottla.client.admin.group_lag import GroupLag
    from ottla.client.sync.admin import Admin

WATCH_S = 2.0
#: What a row has besides a group's or partition's own fields: how its time is shown.
BEHIND = Column("BEHIND", lambda row: _behind(row["time_lag_ms"]), number=True)
RATES = (Column("READ/S", "read_per_s", number=True), Column("WRITTEN/S", "written_per_s", number=True))


def _lag_colour(row: Row) -> str | None:
    return "yellow" if row["lag"] else None


LAG = Column("LAG", "lag", number=True, colour=_lag_colour)
COLUMNS = {
    "partition": (
        Column("TOPIC", "topic"),
        Column("PARTITION", "partition", number=True),
        Column("COMMITTED", "committed_offset", number=True),
        Column("END", "end_offset", number=True),
        LAG,
        BEHIND,
        Column("CLIENT", "client_id"),
        Column("HOST", "host"),
        Column("START", "start_offset", number=True, wide=True),
        Column("LOST", "lost", number=True, wide=True),
        Column("MEMBER", "member_id", wide=True),
    ),
    "topic": (Column("TOPIC", "topic"), Column("PARTITIONS", "partitions", number=True), LAG, BEHIND),
    "group": (Column("GROUP", "group"), Column("STATE", "state"), Column("PARTITIONS", "partition_count", number=True), LAG, BEHIND),
}


@fields(
    {
        "topics[].topic": "a topic that it reads",
        "topics[].partitions": "how many partitions of it",
        "topics[].lag": "in all of them",
        "topics[].time_lag_ms": "the longest",
        "partitions[].topic": "a topic",
        "partitions[].partition": "a number",
        "partitions[].committed_offset": "the next record it reads; null: nothing is committed",
        "partitions[].start_offset": "where the log begins",
        "partitions[].end_offset": "where it ends",
        "partitions[].lag": "records between; null: not known",
        "partitions[].lost": "records that were deleted before the group read them",
        "partitions[].first_unread_ms": "when the first unread record was written",
        "partitions[].last_ms": "when the newest record was written",
        "partitions[].time_lag_ms": "how long ago the first unread record was written; 0: there is none",
        "partitions[].unread_span_ms": "from that record to the newest",
        "partitions[].member_id": "who reads it; null: nobody",
        "partitions[].client_id": "its client.id",
        "partitions[].host": "from where it is connected",
        "partitions[].error": "why something is not known",
        "partitions[].read_per_s": "with --watch: records committed per second since the last reading",
        "partitions[].written_per_s": "with --watch: records written per second in the same time",
    },
    group="its id",
    state="Stable, Empty, ...",
    read_at_ms="when it was looked at",
    lag="records in all",
    time_lag_ms="the longest of its partitions",
)
@click.command()
@click.argument("names", nargs=-1, metavar="[GROUP...]", shell_complete=group_names)
@click.option(
    "--by",
    type=click.Choice(["partition", "topic", "group"]),
    default="partition",
    show_default=True,
    help="A line for each partition, or totals for each topic or group.",
)
@click.option("--no-times", is_flag=True, help="Leave out how long ago the first unread records were written, which takes reading them.")
@click.option(
    "-w", "--watch", "every_s", type=click.FloatRange(min=0.1), is_flag=False, flag_value=WATCH_S, metavar="[SECONDS]",
    help=f"Read again every so many seconds ({WATCH_S:g} if not given), until stopped.",
)  # fmt: skip
@click.option("-n", "--count", type=click.IntRange(min=1), help="With --watch: stop after so many readings.")
@output_option
@bootstrap_option
def lag(names: tuple[str, ...], by: str, no_times: bool, every_s: float | None, count: int | None, output: Form, bootstrap: str) -> None:
    """Show how far behind the end of the log groups are; all groups if none is named."""
    if count is not None and every_s is None:
        raise click.UsageError("-n goes with --watch")
    with told(), connected(bootstrap) as admin:
        found = _read(admin, names, times=not no_times)
        if every_s is None:
            _show(found, by, output)
            return
        readings = _readings(admin, names, found, every_s, count, times=not no_times)
        try:
            if output.for_programs:
                _print_lines(readings, output)
            elif tables.is_terminal():
                _draw(readings, by, output)
            else:
                at = Column("AT", "read_at_ms")
                for reading in readings:
                    for group in reading.groups:
                        rows, columns = _view(group, by, _rates(group, reading.before.get(group.group_id)))
                        stamped = [{**row, "read_at_ms": group.read_at_ms} for row in rows]
                        output.table(stamped, (at, *_with_group(columns, by)))
                    sys.stdout.flush()
        except KeyboardInterrupt:
            # The usual way to end it.
            sys.stdout.flush()


#: Records committed and written per second, by topic and partition.
Rates = dict[tuple[str, int], tuple[float | None, float | None]]


class Reading(NamedTuple):
    """The groups now, and as they were one reading before."""

    groups: list[GroupLag]
    before: dict[str, GroupLag]


def _read(admin: Admin, names: Sequence[str], *, times: bool) -> list[GroupLag]:
    """Groups that are named must be there; of all others, one may go while we look."""
    from ottla.wire.errors import GroupIdNotFound, KafkaError

    asked = names or [one.group_id for one in admin.list_groups() if one.type.lower() in ("classic", "consumer", "unknown")]
    found = []
    for name, outcome in admin.consumer_group_lag(asked, times=times).items():
        if not isinstance(outcome, KafkaError):
            found.append(outcome)
        elif names or not isinstance(outcome, GroupIdNotFound):
            raise no_group(admin, name, outcome)
    return found


def _readings(
    admin: Admin, names: Sequence[str], first: list[GroupLag], every_s: float, count: int | None, *, times: bool
) -> Iterator[Reading]:
    """One reading after the other. One that fails is told, and missing."""
    from ottla.wire.errors import KafkaError

    before: dict[str, GroupLag] = {}
    groups, done = first, 0
    due = time.monotonic()
    while True:
        yield Reading(groups, before)
        done += 1
        before = {group.group_id: group for group in groups}
        while True:
            if count is not None and done >= count:
                return
            due = max(due + every_s, time.monotonic())
            time.sleep(max(due - time.monotonic(), 0))
            try:
                groups = _read(admin, names, times=times)
                break
            except (KafkaError, click.ClickException) as error:
                click.echo(f"Error: {' '.join(str(error).split())}", err=True)
                done += 1


# -- for programs


def _print_lines(readings: Iterable[Reading], output: Form) -> None:
    for reading in readings:
        for group in reading.groups:
            output.document(document(group, _rates(group, reading.before.get(group.group_id))), of_many=True)
        sys.stdout.flush()


def document(group: GroupLag, rates: Rates | None = None) -> dict[str, Any]:
    """A group for JSON; with rates when it is watched."""
    from ottla.client.admin.group_lag import longest_time_lag, total_lag

    return {
        "group": group.group_id,
        "state": group.state.value,
        "read_at_ms": group.read_at_ms,
        "lag": group.lag,
        "time_lag_ms": group.time_lag_ms,
        "topics": [
            {"topic": topic, "partitions": len(rows), "lag": total_lag(rows), "time_lag_ms": longest_time_lag(rows)}
            for topic, rows in group.by_topic().items()
        ],
        "partitions": [
            {
                "topic": one.topic,
                "partition": one.partition,
                "committed_offset": one.committed_offset,
                "start_offset": one.start_offset,
                "end_offset": one.end_offset,
                "lag": one.lag,
                "lost": one.lost,
                "first_unread_ms": one.first_unread_ms,
                "last_ms": one.last_ms,
                "time_lag_ms": one.time_lag_ms,
                "unread_span_ms": one.unread_span_ms,
                "member_id": one.member and one.member.member_id,
                "client_id": one.member and one.member.client_id,
                "host": one.member and one.member.host.removeprefix("/"),
                "error": one.error,
                **({} if rates is None else dict(zip(("read_per_s", "written_per_s"), rates[one.topic, one.partition], strict=True))),
            }
            for one in group.partitions
        ],
    }


def _rates(group: GroupLag, before: GroupLag | None) -> Rates:
    """Records committed and written per second since the reading before; None where that is not known."""
    seconds = 0 if before is None else (group.read_at_ms - before.read_at_ms) / 1000

    def per_s(now: int | None, then: int | None) -> float | None:
        return None if now is None or then is None or seconds <= 0 else round((now - then) / seconds, 1)

    was = {} if before is None else {(one.topic, one.partition): (one.committed_offset, one.end_offset) for one in before.partitions}
    rates: Rates = {}
    for one in group.partitions:
        committed, end = was.get((one.topic, one.partition), (None, None))
        rates[one.topic, one.partition] = per_s(one.committed_offset, committed), per_s(one.end_offset, end)
    return rates


# -- for people and pipes


def _show(found: list[GroupLag], by: str, output: Form) -> None:
    if output.for_programs:
        output.document([document(group) for group in found])
        return
    if by == "group":
        output.table([row for group in found for row in _view(group, by, None)[0]], COLUMNS["group"])
        return
    for number, group in enumerate(found):
        if number and tables.is_terminal():
            click.echo()
        output.table(*_view(group, by, None), title=_title(group), prefix=("GROUP", group.group_id))
        _warn(group)


def _warn(group: GroupLag) -> None:
    for one in group.partitions:
        said = f"{group.group_id}: {one.topic}-{one.partition}"
        if one.lost:
            click.echo(f"{said}: {one.lost} records were deleted before the group read them", err=True)
        if one.error:
            click.echo(f"{said}: {one.error}", err=True)


def _draw(readings: Iterable[Reading], by: str, output: Form) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False, console=Console(no_color=not tables.has_colours(), highlight=False)) as live:
        for groups, before in readings:
            rates = {group.group_id: _rates(group, before.get(group.group_id)) for group in groups}
            if by == "group":
                rows = [row for group in groups for row in _view(group, by, rates[group.group_id])[0]]
                drawn = output.drawn(rows, (*COLUMNS["group"], *RATES))
            else:
                drawn = "\n".join(output.drawn(*_view(one, by, rates[one.group_id]), title=_title(one)) for one in groups)
            live.update(Text.from_ansi(drawn), refresh=True)


def _title(group: GroupLag) -> str:
    said = [group.group_id, group.state.value]
    if group.lag is not None:
        said.append(f"lag {group.lag}")
    if group.time_lag_ms is not None:
        said.append(f"behind {duration_text(group.time_lag_ms)}")
    return "  ".join(said)


def _with_group(columns: Sequence[Column], by: str) -> tuple[Column, ...]:
    """For a pipe, where a line stands for itself."""
    return tuple(columns) if by == "group" else (Column("GROUP", "group"), *columns)


def _view(group: GroupLag, by: str, rates: Rates | None) -> tuple[list[dict[str, Any]], tuple[Column, ...]]:
    """Rows and columns; with rates when the group is watched."""
    told = document(group, rates)
    parts: list[dict[str, Any]] = told["partitions"]
    if by == "partition":
        rows = parts
    elif by == "topic":
        rows = [{**topic, **_summed([one for one in parts if one["topic"] == topic["topic"]])} for topic in told["topics"]]
    else:
        rows = [{**told, "partition_count": len(parts), **_summed(parts)}]
    return [{"group": group.group_id, **row} for row in rows], (COLUMNS[by] if rates is None else (*COLUMNS[by], *RATES))


def _summed(parts: Sequence[Row]) -> dict[str, float | None]:
    """Both rates over some partitions, of those that are known."""
    sums: dict[str, float | None] = {}
    for name in ("read_per_s", "written_per_s"):
        known = [one[name] for one in parts if one.get(name) is not None]
        sums[name] = round(sum(known), 1) if known else None
    return sums


def _behind(ms: int | None) -> object:
    return ms if ms is None or not tables.is_terminal() else duration_text(ms)
