"""`ottla group lag`: how far behind groups are, in records and in time; once, or again and again (`--watch`).

To a person a table per group, which `--watch` draws anew in place; to a pipe a line per partition; with `-o json` one document, or with
`--watch` one line per group and reading. Watching goes on when brokers go away, and says so on stderr. What `-o json` prints, `ottla group
reset --from-file` takes.

    BEHIND     how long ago the first unread record was written       in a pipe milliseconds
    READ/S     records committed per second since the last reading, and written in the same time
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ottla.cli.group_words import no_group
from ottla.cli.render import admin as connected
from ottla.cli.render import bootstrap_option, drawn, is_terminal, output_option, print_json, table, told
from ottla.cli.words import duration_text

if TYPE_CHECKING:
    from ottla.client.group_lag import GroupLag, PartitionLag
    from ottla.client.sync_admin import Admin

WATCH_S = 2.0
NUMBERS = ("PARTITION", "PARTITIONS", "COMMITTED", "END", "LAG", "BEHIND", "READ/S", "WRITTEN/S")


@click.command()
@click.argument("names", nargs=-1, metavar="[GROUP...]")
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
def lag(names: tuple[str, ...], by: str, no_times: bool, every_s: float | None, count: int | None, output: str, bootstrap: str) -> None:
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
            if output == "json":
                _print_lines(readings)
            elif is_terminal():
                _draw(readings, by)
            else:
                for reading in readings:
                    for group in reading.groups:
                        _lines(group, by, _rates(group, reading.before.get(group.group_id)), (group.read_at_ms,))
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


def _print_lines(readings: Iterable[Reading]) -> None:
    import msgspec

    for reading in readings:
        for group in reading.groups:
            sys.stdout.write(msgspec.json.encode(document(group, _rates(group, reading.before.get(group.group_id)))).decode() + "\n")
        sys.stdout.flush()


def document(group: GroupLag, rates: Rates | None = None) -> dict[str, Any]:
    """A group for JSON; with rates when it is watched."""
    from ottla.client.group_lag import longest_time_lag, total_lag

    return {
        "group": group.group_id,
        "state": group.state,
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


def _show(found: list[GroupLag], by: str, output: str) -> None:
    if output == "json":
        print_json([document(group) for group in found])
        return
    if by == "group" and is_terminal():
        table(*_totals(found, None), right=NUMBERS)
        return
    for group in found:
        if is_terminal():
            table(*_rows(group, by, None), title=_title(group), right=NUMBERS)
        else:
            _lines(group, by, None, ())
        _warn(group)


def _warn(group: GroupLag) -> None:
    for one in group.partitions:
        said = f"{group.group_id}: {one.topic}-{one.partition}"
        if one.lost:
            click.echo(f"{said}: {one.lost} records were deleted before the group read them", err=True)
        if one.error:
            click.echo(f"{said}: {one.error}", err=True)


def _draw(readings: Iterable[Reading], by: str) -> None:
    from rich.console import Group
    from rich.live import Live

    with Live(auto_refresh=False) as live:
        for groups, before in readings:
            rates = {group.group_id: _rates(group, before.get(group.group_id)) for group in groups}
            if by == "group":
                live.update(drawn(*_totals(groups, rates), right=NUMBERS), refresh=True)
            else:
                tables = [drawn(*_rows(one, by, rates[one.group_id]), title=_title(one), right=NUMBERS) for one in groups]
                live.update(Group(*tables), refresh=True)


def _title(group: GroupLag) -> str:
    said = [group.group_id, group.state.value]
    if group.lag is not None:
        said.append(f"lag {group.lag}")
    if group.time_lag_ms is not None:
        said.append(f"behind {duration_text(group.time_lag_ms)}")
    return "  ".join(said)


def _lines(group: GroupLag, by: str, rates: Rates | None, prefix: tuple[object, ...]) -> None:
    """Lines for a pipe: each names its group."""
    if by == "group":
        rows = _totals([group], None if rates is None else {group.group_id: rates})[1]
    else:
        rows = [(group.group_id, *row) for row in _rows(group, by, rates)[1]]
    table((), [(*prefix, *row) for row in rows])


Drawing = tuple[tuple[str, ...], list[tuple[object, ...]]]
WATCHED = ("READ/S", "WRITTEN/S")


def _rows(group: GroupLag, by: str, rates: Rates | None) -> Drawing:
    from ottla.client.group_lag import longest_time_lag, total_lag

    columns: tuple[str, ...]
    rows: list[tuple[object, ...]]
    if by == "topic":
        columns = ("TOPIC", "PARTITIONS", "LAG", "BEHIND")
        rows = [
            (topic, len(parts), total_lag(parts), _behind(longest_time_lag(parts)), *_summed(parts, rates))
            for topic, parts in group.by_topic().items()
        ]
    else:
        columns = ("TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "BEHIND", "CLIENT", "HOST")
        rows = [
            (one.topic, one.partition, one.committed_offset, one.end_offset, one.lag, _behind(one.time_lag_ms),
             one.member and one.member.client_id, one.member and one.member.host.removeprefix("/"), *_summed([one], rates))
            for one in group.partitions
        ]  # fmt: skip
    return (columns if rates is None else (*columns, *WATCHED)), rows


def _totals(found: list[GroupLag], rates: dict[str, Rates] | None) -> Drawing:
    columns = ("GROUP", "STATE", "PARTITIONS", "LAG", "BEHIND")
    rows: list[tuple[object, ...]] = [
        (group.group_id, group.state.value, len(group.partitions), group.lag, _behind(group.time_lag_ms),
         *_summed(group.partitions, None if rates is None else rates[group.group_id]))
        for group in found
    ]  # fmt: skip
    return (columns if rates is None else (*columns, *WATCHED)), rows


def _summed(parts: list[PartitionLag], rates: Rates | None) -> tuple[float | None, ...]:
    """Both rates over some partitions; nothing unless the group is watched."""
    if rates is None:
        return ()
    each = list(zip(*(rates[one.topic, one.partition] for one in parts), strict=True)) or [(), ()]
    return tuple(round(sum(known), 1) if (known := [rate for rate in kind if rate is not None]) else None for kind in each)


def _behind(ms: int | None) -> object:
    return ms if ms is None or not is_terminal() else duration_text(ms)
