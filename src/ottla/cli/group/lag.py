"""`ottla group lag`: lag of groups in records and in time, once or continuously (`--watch`).

On a terminal it prints a table per group, which `--watch` redraws in place; in a pipe a line per partition. `-o json` and `yaml` print one
document, with `--watch` one per group and reading. A reading that fails is reported on stderr and watching continues. `ottla group reset
--from-file` reads the output of `-o json`.

    TIME LAG   time since the first unread record was written; in a pipe in milliseconds
    READ/S     records committed per second since the previous reading
    WRITTEN/S  records written per second in the same time
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

import ottla
from ottla.cli.common import tables
from ottla.cli.common.admin import admin_client, admin_options
from ottla.cli.common.arguments import duration_ms, duration_text
from ottla.cli.common.complete import group_names
from ottla.cli.common.output_formats import OutputFormat, fields, note
from ottla.cli.common.tables import PLACE, Column, Row
from ottla.cli.group.errors import group_error
from ottla.cli.group.list import NO_GROUPS
from ottla.wire.errors import GroupIdNotFound, KafkaError

if TYPE_CHECKING:
    from ottla.client.admin.group_lag import GroupLag

WATCH, WATCH_S_MIN = "2s", 0.1
TIME_LAG = Column("TIME-LAG", lambda row: _time_lag(row["time_lag_ms"]), number=True)
RATES = (Column("READ/S", "read_per_s", number=True), Column("WRITTEN/S", "written_per_s", number=True))


def _lag_colour(row: Row) -> str | None:
    return "yellow" if row["lag"] else None


#: Fields of a partition's document that `PartitionLag` has.
PARTITION_FIELDS = (
    "topic", "partition", "committed_offset", "start_offset", "end_offset", "lag", "lost", "first_unread_ms", "last_ms", "time_lag_ms",
    "unread_span_ms",
)  # fmt: skip
LAG = Column("LAG", "lag", number=True, colour=_lag_colour)
COLUMNS = {
    "partition": (
        *PLACE,
        Column("CURRENT-OFFSET", "committed_offset", number=True),
        Column("LOG-END-OFFSET", "end_offset", number=True),
        LAG,
        TIME_LAG,
        Column("CLIENT-ID", "client_id"),
        Column("HOST", "host"),
        Column("LOG-START-OFFSET", "start_offset", number=True, wide=True),
        Column("LOST", "lost", number=True, wide=True),
        Column("CONSUMER-ID", "member_id", wide=True),
    ),
    "topic": (Column("TOPIC", "topic"), Column("PARTITIONS", "partitions", number=True), LAG, TIME_LAG),
    "group": (Column("GROUP", "group"), Column("STATE", "state"), Column("PARTITIONS", "partition_count", number=True), LAG, TIME_LAG),
}


@fields(
    {
        "topics[].topic": "topic",
        "topics[].partitions": "number of its partitions with offsets",
        "topics[].lag": "sum of their lag",
        "topics[].time_lag_ms": "largest time lag of them",
        "partitions[].topic": "topic",
        "partitions[].partition": "partition",
        "partitions[].committed_offset": "committed offset; null: none",
        "partitions[].start_offset": "log start offset",
        "partitions[].end_offset": "log end offset",
        "partitions[].lag": "records between the committed offset and the log end; null: unknown",
        "partitions[].lost": "number of records that were deleted before the group read them",
        "partitions[].first_unread_ms": "timestamp of the first unread record",
        "partitions[].last_ms": "timestamp of the newest record",
        "partitions[].time_lag_ms": "age of the first unread record; 0: none",
        "partitions[].unread_span_ms": "time between that record and the newest",
        "partitions[].member_id": "member that reads it; null: none",
        "partitions[].client_id": "client.id of the member",
        "partitions[].host": "host of the member",
        "partitions[].error": "why a value is unknown",
        "partitions[].read_per_s": "with --watch: records committed per second since the previous reading",
        "partitions[].written_per_s": "with --watch: records written per second in the same time",
    },
    group="group id",
    state="Stable, Empty, ...",
    read_at_ms="time of the reading",
    lag="sum of the partitions' lag",
    time_lag_ms="largest time lag of the partitions",
)
@click.command()
@click.argument("names", nargs=-1, metavar="[GROUP...]", shell_complete=group_names)
@click.option(
    "--by",
    type=click.Choice(["partition", "topic", "group"]),
    default="partition",
    show_default=True,
    help="Print a line per partition, topic or group.",
)
@click.option("--no-times", is_flag=True, help="Omit the time lag, which needs to read records.")
@click.option(
    "-w", "--watch", "every", is_flag=False, flag_value=WATCH, metavar="[DURATION]",
    help=f"Repeat at this interval, such as 500ms, until Ctrl-C. [default: {WATCH}]",
)  # fmt: skip
@click.option("-n", "--count", type=click.IntRange(min=1), help="With --watch: number of readings.")
@admin_options
def lag(
    names: tuple[str, ...], by: str, no_times: bool, every: str | None, count: int | None, output: OutputFormat, bootstrap: str
) -> None:
    """Show the lag of groups in records and time. [default: all groups]"""
    every_s = None if every is None else max(WATCH_S_MIN, duration_ms(every, "--watch") / 1000)
    if count is not None and every_s is None:
        raise click.UsageError("-n needs --watch")
    with admin_client(bootstrap) as admin:
        found = _read(admin, names, times=not no_times)
        if not found and not output.is_structured:
            note(NO_GROUPS)
        if every_s is None:
            _show(found, by, output)
            return
        readings = _readings(admin, names, found, every_s, count, times=not no_times)
        try:
            if output.is_structured:
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
            sys.stdout.flush()


#: Records committed and written per second, by topic and partition.
Rates = dict[tuple[str, int], tuple[float | None, float | None]]


class Reading(NamedTuple):
    """The lag of groups now, and in the previous reading."""

    groups: list[GroupLag]
    before: dict[str, GroupLag]


def _read(admin: ottla.Admin, names: Sequence[str], *, times: bool) -> list[GroupLag]:
    """The lag of groups. Named groups must exist; without names, a group that was deleted meanwhile is ignored."""
    group_ids = names or [one.group_id for one in admin.list_groups() if one.type.lower() in ("classic", "consumer", "unknown")]
    found = []
    for name, outcome in admin.consumer_group_lag(group_ids, times=times).items():
        if not isinstance(outcome, KafkaError):
            found.append(outcome)
        elif names or not isinstance(outcome, GroupIdNotFound):
            raise group_error(admin, name, outcome)
    return found


def _readings(
    admin: ottla.Admin, names: Sequence[str], first: list[GroupLag], every_s: float, count: int | None, *, times: bool
) -> Iterator[Reading]:
    """Readings at an interval. A reading that fails is reported and left out."""
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


def _print_lines(readings: Iterable[Reading], output: OutputFormat) -> None:
    for reading in readings:
        for group in reading.groups:
            output.document(document(group, _rates(group, reading.before.get(group.group_id))), of_many=True)
        sys.stdout.flush()


def document(group: GroupLag, rates: Rates | None = None) -> dict[str, Any]:
    """A document of a group; with rates with `--watch`."""
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
                **{name: getattr(one, name) for name in PARTITION_FIELDS},
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
    """Records committed and written per second since the previous reading; None if unknown."""
    seconds = 0 if before is None else (group.read_at_ms - before.read_at_ms) / 1000

    def per_s(now: int | None, then: int | None) -> float | None:
        return None if now is None or then is None or seconds <= 0 else round((now - then) / seconds, 1)

    was = {} if before is None else {(one.topic, one.partition): (one.committed_offset, one.end_offset) for one in before.partitions}
    rates: Rates = {}
    for one in group.partitions:
        committed, end = was.get((one.topic, one.partition), (None, None))
        rates[one.topic, one.partition] = per_s(one.committed_offset, committed), per_s(one.end_offset, end)
    return rates


def _show(found: list[GroupLag], by: str, output: OutputFormat) -> None:
    if output.is_structured:
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
        name = f"{group.group_id}: {one.topic}-{one.partition}"
        if one.lost:
            click.echo(f"{name}: {one.lost} records were deleted before the group read them", err=True)
        if one.error:
            click.echo(f"{name}: {one.error}", err=True)


def _draw(readings: Iterable[Reading], by: str, output: OutputFormat) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False, console=Console(no_color=not tables.has_colours(), highlight=False)) as live:
        for groups, before in readings:
            rates = {group.group_id: _rates(group, before.get(group.group_id)) for group in groups}
            if by == "group":
                rows = [row for group in groups for row in _view(group, by, rates[group.group_id])[0]]
                table = output.rendered(rows, (*COLUMNS["group"], *RATES))
            else:
                table = "\n".join(output.rendered(*_view(one, by, rates[one.group_id]), title=_title(one)) for one in groups)
            live.update(Text.from_ansi(table), refresh=True)


def _title(group: GroupLag) -> str:
    parts = [group.group_id, group.state.value]
    if group.lag is not None:
        parts.append(f"lag {group.lag}")
    if group.time_lag_ms is not None:
        parts.append(f"time lag {duration_text(group.time_lag_ms)}")
    return "  ".join(parts)


def _with_group(columns: Sequence[Column], by: str) -> tuple[Column, ...]:
    """The columns with the group's name, for a pipe, where tables have no title."""
    return tuple(columns) if by == "group" else (Column("GROUP", "group"), *columns)


def _view(group: GroupLag, by: str, rates: Rates | None) -> tuple[list[dict[str, Any]], tuple[Column, ...]]:
    """Rows and columns; with rates with `--watch`."""
    shown = document(group, rates)
    parts: list[dict[str, Any]] = shown["partitions"]
    if by == "partition":
        rows = parts
    elif by == "topic":
        rows = [{**topic, **_summed([one for one in parts if one["topic"] == topic["topic"]])} for topic in shown["topics"]]
    else:
        rows = [{**shown, "partition_count": len(parts), **_summed(parts)}]
    return [{"group": group.group_id, **row} for row in rows], (COLUMNS[by] if rates is None else (*COLUMNS[by], *RATES))


def _summed(parts: Sequence[Row]) -> dict[str, float | None]:
    """The sums of both rates over partitions with known rates."""
    sums: dict[str, float | None] = {}
    for name in ("read_per_s", "written_per_s"):
        known = [one[name] for one in parts if one.get(name) is not None]
        sums[name] = round(sum(known), 1) if known else None
    return sums


def _time_lag(ms: int | None) -> object:
    return ms if ms is None or not tables.is_terminal() else duration_text(ms)
