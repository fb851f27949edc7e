"""`ottla consume`: records to standard output, as values, in a format of your own, or as JSON lines.

    %t topic   %p partition   %o offset   %T timestamp in ms   %h headers as name=value,...
    %k key   %K its size   %s value   %S its size   %% percent   \\n \\t \\r \\\\ as in C; sizes are -1 for null, keys and values then empty

Where to begin (`-O`):  beginning   end   N   -N (the last N of each partition)
    @TIME (milliseconds, or 2026-01-31T12:00:00, in local time if no zone)
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.render import admin, bootstrap_option, json_bytes, output_option, told
from ottla.cli.words import time_ms

if TYPE_CHECKING:
    from ottla.base.ids import TopicPartition
    from ottla.client.record import ConsumerRecord
    from ottla.client.sync_consumer import Consumer

#: Records in one poll, and so between two looks at the limits.
POLL_RECORDS = 2000
#: How long a poll waits: after one that gave nothing we see whether the topic is still there.
POLL_MS = 500
#: How soon new partitions of the topic are noticed: how old what we know of it may be, and how often we look at that.
METADATA_MS = 30_000
NEW_S = 1.0
#: Where a group begins that has no offsets.
RESETS = {"beginning": "earliest", "end": "latest"}
ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "\\": b"\\", "0": b"\0"}
TOKENS: dict[str, Callable[[Any], bytes]] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp,
    "h": lambda record: b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers),
    "k": lambda record: record.key or b"",
    "K": lambda record: b"%d" % (-1 if record.key is None else len(record.key)),
    "s": lambda record: record.value or b"",
    "S": lambda record: b"%d" % (-1 if record.value is None else len(record.value)),
    "%": lambda record: b"%",
}


@click.command(name="consume")
@click.argument("topic")
@click.option("--from-beginning", is_flag=True, help="Begin at the start of the log; the same as -O beginning.")
@click.option("-O", "--offset", default="end", show_default=True, metavar="WHERE", help="Where to begin: beginning, end, N, -N, @TIME.")
@click.option("-p", "--partition", "partitions", multiple=True, type=click.IntRange(min=0), help="Only this partition; may be repeated.")
@click.option("-g", "--group", metavar="GROUP", help="Share the topic with the other members of this group, and commit what was printed.")
@click.option("-n", "--max", "limit", type=click.IntRange(min=0), help="Stop after so many records.")
@click.option("-e", "--exit", "to_end", is_flag=True, help="Stop at what is the end of the log now.")
@click.option("-f", "--format", "form", metavar="FORMAT", help="How to print a record, for example '%p %o %k %s\\n'; see the tokens below.")
@click.option("--read-committed", is_flag=True, help="Leave out records of open and aborted transactions.")
@output_option
@bootstrap_option
def command(
    topic: str, from_beginning: bool, offset: str, partitions: tuple[int, ...], group: str | None, limit: int | None, to_end: bool,
    form: str | None, read_committed: bool, output: str, bootstrap: str,
) -> None:  # fmt: skip
    """Print the records of TOPIC as they come.

    With -g, begin where the group is; -O beginning or end says where it begins that has no offset yet.

    \b
    Tokens of -f:  %t topic  %p partition  %o offset  %T timestamp  %h headers
                   %k key  %K key size  %s value  %S value size  %%  \\n  \\t
    """
    from ottla.base.ids import TopicPartition
    from ottla.client.sync_consumer import Consumer

    where = "beginning" if from_beginning else offset
    begin = _where(where)
    render = _json_line if output == "json" else compiled(form if form is not None else "%s\\n")
    with told(), admin(bootstrap) as asked:
        count = len(asked.describe_topic(topic).partitions)
    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap, "client_id": "ottla-cli", "allow_auto_create_topics": False, "default_api_timeout_ms": 30_000,
        "metadata_max_age_ms": METADATA_MS, "isolation_level": "read_committed" if read_committed else "read_uncommitted",
    }  # fmt: skip
    if group is not None:
        if not group:
            raise click.UsageError("-g needs the name of a group")
        from ottla.cli.consume_group import consume

        if partitions or where not in RESETS:
            raise click.UsageError("with -g the group decides about partitions and offsets: no -p, and -O only beginning or end")
        with told():
            consume(topic, group, render, limit, to_end, {**settings, "auto_offset_reset": RESETS[where]})
        return
    with told(), Consumer(**settings) as consumer:
        found = [TopicPartition(topic, partition) for partition in range(count)]
        chosen = [tp for tp in found if not partitions or tp.partition in partitions]
        missing = set(partitions) - {tp.partition for tp in found}
        if missing:
            raise click.ClickException(f"topic {topic} has {len(found)} partitions, no partition {min(missing)}")
        ends = consumer.end_offsets(chosen) if to_end else None
        consumer.assign(chosen)
        begin(consumer, chosen)
        # Of a partition that comes while we read, everything came after we began, whatever came before that.
        begin_new = begin if where == "beginning" or where.isdigit() else _where("beginning")
        try:
            _print(consumer, chosen, render, limit, ends, None if partitions or to_end else begin_new)
        except KeyboardInterrupt:
            # The usual way to end it.
            sys.stdout.buffer.flush()


def _print(
    consumer: Consumer,
    chosen: list[TopicPartition],
    render: Callable[[ConsumerRecord], bytes],
    limit: int | None,
    ends: dict[TopicPartition, int] | None,
    begin_new: Callable[[Consumer, list[TopicPartition]], None] | None,
) -> None:
    """Until there were enough records, or all ``ends`` are reached. ``begin_new`` begins partitions that come meanwhile."""
    from ottla.wire.errors import KafkaError

    out = sys.stdout.buffer
    left = float("inf") if limit is None else limit
    looked_at = time.monotonic()
    while left > 0:
        if begin_new is not None and time.monotonic() - looked_at > NEW_S:
            looked_at = time.monotonic()
            _take_new(consumer, chosen, begin_new)
        if ends is not None:
            for tp in [tp for tp, end in ends.items() if consumer.position(tp) >= end]:
                del ends[tp]
                consumer.pause(tp)
            if not ends:
                break
        most = int(min(left, POLL_RECORDS))
        records = consumer.poll(POLL_MS, most)
        if not records:
            try:
                check_there(consumer, chosen)
            except (KafkaError, click.ClickException):
                # What has come meanwhile is printed before it ends.
                records = consumer.poll(0, most)
                if not records:
                    raise
        for record in records:
            # What was written after we began belongs to the next run.
            if ends is None or record.offset < ends.get((record.topic, record.partition), 0):  # type: ignore[call-overload]
                out.write(render(record))
                left -= 1
        out.flush()
    out.flush()


def _take_new(consumer: Consumer, chosen: list[TopicPartition], begin: Callable[[Consumer, list[TopicPartition]], None]) -> None:
    """Read partitions that the topic has got meanwhile, too."""
    from ottla.client.errors import MetadataTimedOut
    from ottla.wire.errors import UnknownTopicOrPartition

    try:
        fresh = consumer.partitions_for(chosen[0].topic, timeout_ms=0)[len(chosen) :]
    except (MetadataTimedOut, UnknownTopicOrPartition):
        # Whoever waits in vain for records is told.
        return
    if fresh:
        chosen += fresh
        consumer.assign(chosen)
        begin(consumer, fresh)


def check_there(consumer: Consumer, chosen: list[TopicPartition]) -> None:
    """Nothing would ever come of a partition that was deleted. Raises: UnknownTopicOrPartition, ClickException."""
    topic, last = chosen[-1]
    count = len(consumer.partitions_for(topic))
    if last >= count:
        raise click.ClickException(f"topic {topic} was made again with {count} partitions, there is no partition {last} any more")


def compiled(form: str) -> Callable[[ConsumerRecord], bytes]:
    """A function that prints a record as the format says. Raises: UsageError for a token that does not exist."""
    parts: list[bytes | Callable[[Any], bytes]] = []
    literal = bytearray()
    characters = iter(form)
    for character in characters:
        if character == "\\":
            following = next(characters, "\\")
            literal += ESCAPES.get(following, b"\\" + following.encode())
        elif character == "%":
            token = next(characters, "")
            if token not in TOKENS:
                raise click.UsageError(f"-f: unknown token %{token}; known are {' '.join('%' + name for name in TOKENS)}")
            parts += [bytes(literal), TOKENS[token]]
            literal.clear()
        else:
            literal += character.encode()
    parts.append(bytes(literal))
    whole = [part for part in parts if part]
    return lambda record: b"".join(part if isinstance(part, bytes) else part(record) for part in whole)


def _json_line(record: ConsumerRecord) -> bytes:
    import msgspec

    return (
        msgspec.json.encode(
            {
                "topic": record.topic,
                "partition": record.partition,
                "offset": record.offset,
                "timestamp": record.timestamp,
                "key": json_bytes(record.key),
                "value": json_bytes(record.value),
                "headers": [[name, json_bytes(value)] for name, value in record.headers],
            }
        )
        + b"\n"
    )


def _where(text: str) -> Callable[[Consumer, list[TopicPartition]], None]:
    """What to do to begin there. Raises: UsageError."""
    if text == "beginning":
        return lambda consumer, chosen: consumer.seek_to_beginning(*chosen)
    if text == "end":
        return lambda consumer, chosen: consumer.seek_to_end(*chosen)
    if text.startswith("@"):
        when_ms = time_ms(text[1:], "-O @TIME")
        return lambda consumer, chosen: _seek_to_time(consumer, chosen, when_ms)
    try:
        number = int(text)
    except ValueError:
        raise click.UsageError(f"-O expects beginning, end, N, -N or @TIME, not {text!r}") from None
    if text.startswith("-"):
        return lambda consumer, chosen: _seek_back(consumer, chosen, -number)
    return lambda consumer, chosen: _seek_to(consumer, chosen, number)


def _seek_to(consumer: Consumer, chosen: list[TopicPartition], offset: int) -> None:
    for tp in chosen:
        consumer.seek(tp, offset)


def _seek_to_time(consumer: Consumer, chosen: list[TopicPartition], when_ms: int) -> None:
    found = consumer.offsets_for_times(dict.fromkeys(chosen, when_ms))
    ends = consumer.end_offsets(chosen)
    for tp in chosen:
        at = found.get(tp)
        consumer.seek(tp, ends[tp] if at is None else at.offset)


def _seek_back(consumer: Consumer, chosen: list[TopicPartition], count: int) -> None:
    starts, ends = consumer.beginning_offsets(chosen), consumer.end_offsets(chosen)
    for tp in chosen:
        consumer.seek(tp, max(starts[tp], ends[tp] - count))
