"""`ottla produce`: lines of standard input become records.

Plain: each line is a value; with `-K :` the part before the first `:` is the key. JSON (`-o json`): each line is an object, of which only
the value must be there, in the form that `ottla consume -o json` prints:

    {"key": "k", "value": "v", "headers": [["name", "value"]], "partition": 0, "timestamp": 1700000000000}

A value of null is a tombstone. What is printed back is nothing but errors and, to a person, a count.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import click

from ottla.cli.render import admin, assignments, bootstrap_option, bytes_json, told

#: Deliveries that are remembered before the first of them must be done.
WAITING_MAX = 100_000
TOPIC_TIMEOUT_MS = 15_000
NAMES = frozenset({"key", "value", "headers", "partition", "timestamp"})
#: Said by consume, of no use here.
IGNORED = frozenset({"topic", "offset", "timestamp_type"})


class Line(NamedTuple):
    """One record to send."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


@click.command(name="produce")
@click.argument("topic")
@click.option("-K", "--key-delimiter", metavar="TEXT", help="Split each line at its first TEXT into key and value.")
@click.option("-k", "--key", help="Key of every record.")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Header of every record; may be repeated.")
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Partition of every record; otherwise the key decides.")
@click.option(
    "-z",
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="Codec of the batches.",
)
@click.option(
    "--acks",
    type=click.Choice(["all", "1", "0"]),
    default="all",
    show_default=True,
    help="Who must have a record: all in-sync replicas, the leader, nobody.",
)
@click.option("-o", "--input", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="How lines are read.")
@bootstrap_option
def command(
    topic: str, key_delimiter: str | None, key: str | None, headers: tuple[str, ...], partition: int | None, compression: str,
    acks: str, form: str, bootstrap: str,
) -> None:  # fmt: skip
    """Send the lines of standard input to TOPIC, each as a record."""
    from ottla.client.sync import Producer
    from ottla.wire.errors import KafkaError, UnknownTopicOrPartition

    pairs = tuple((name, value.encode()) for name, value in assignments(headers, "-H").items())
    fixed = None if key is None else key.encode()
    sent = 0
    waiting: deque[Any] = deque()
    with told():
        # Who types a wrong address should not have to wait until a producer's patience is over; a topic that is missing may be created.
        with admin(bootstrap) as asked:
            outcome = asked.describe_topics([topic])[topic]
            if isinstance(outcome, KafkaError) and not isinstance(outcome, UnknownTopicOrPartition):
                raise outcome
        producer = Producer(
            bootstrap_servers=bootstrap, client_id="ottla-cli", compression_type=compression, acks=acks, max_block_ms=TOPIC_TIMEOUT_MS
        )
    with told(), producer:
        for number, raw in enumerate(sys.stdin.buffer, 1):
            text = raw[:-1] if raw.endswith(b"\n") else raw
            line = _from_json(text, number) if form == "json" else _from_text(text, key_delimiter)
            if line is None:
                continue
            waiting.append(
                producer.send(
                    topic,
                    line.value,
                    line.key if line.key is not None else fixed,
                    pairs + line.headers,
                    line.partition if line.partition is not None else partition,
                    line.timestamp_ms,
                )
            )
            sent += 1
            while waiting and (len(waiting) > WAITING_MAX or waiting[0].done()):
                waiting.popleft().result()
        producer.flush()
        for delivery in waiting:
            delivery.result()
    if sys.stderr.isatty():
        click.echo(f"{sent} records written to {topic}", err=True)


def _from_text(line: bytes, delimiter: str | None) -> Line:
    if delimiter is None:
        return Line(line)
    key, found, value = line.partition(delimiter.encode())
    return Line(value, key) if found else Line(line)


def _from_json(line: bytes, number: int) -> Line | None:
    """A record from JSON; None from an empty line. Raises: ValueError naming the line."""
    import msgspec

    if not line.strip():
        return None
    try:
        found = msgspec.json.decode(line)
        if not isinstance(found, dict):
            raise ValueError("not a JSON object")
        unknown = [name for name in found if name not in NAMES | IGNORED]
        if unknown:
            raise ValueError(f"unknown field {unknown[0]!r}; known are {', '.join(sorted(NAMES))}")
        if "value" not in found:
            raise ValueError("no field 'value'; null makes a tombstone")
        return Line(
            bytes_json(found["value"], "value"),
            bytes_json(found.get("key"), "key"),
            tuple(_headers(found.get("headers") or ())),
            _whole(found, "partition"),
            _whole(found, "timestamp"),
        )
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from None


def _headers(found: Any) -> Iterator[tuple[str, bytes | None]]:
    pairs = found.items() if isinstance(found, dict) else found
    if isinstance(pairs, str):
        raise ValueError("headers: expected a list of [name, value]")
    for pair in pairs:
        name, value = pair if isinstance(pair, list | tuple) and len(pair) == 2 else (None, None)
        if not isinstance(name, str):
            raise ValueError("headers: expected a list of [name, value]")
        yield name, bytes_json(value, f"header {name}")


def _whole(found: dict[str, Any], name: str) -> int | None:
    value = found.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise ValueError(f"{name}: expected a whole number")
    return value
