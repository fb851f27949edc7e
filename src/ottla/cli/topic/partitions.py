"""`ottla topic partitions`, `offsets` and `producers`: what is to be known partition by partition."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.common.arguments import duration_ms, time_ms, time_text
from ottla.cli.common.complete import broker_ids, topic_names
from ottla.cli.common.connection import admin as connected
from ottla.cli.common.connection import bootstrap_option
from ottla.cli.common.errors import told
from ottla.cli.common.output_formats import Form, fields, output_option
from ottla.cli.common.tables import Column
from ottla.cli.topic.lookup import PARTITION, chosen, described, ends, leader, partition_document, state_colour

if TYPE_CHECKING:
    from ottla.client.sync.admin import Admin

PARTITIONS = (
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition", number=True),
    Column("LEADER", leader, number=True, colour=state_colour),
    Column("REPLICAS", "replicas"),
    Column("ISR", "isr", colour=state_colour),
    Column("OFFLINE", "offline"),
    Column("EPOCH", "leader_epoch", number=True, wide=True),
)
OFFSETS = (
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition", number=True),
    Column("START", "start_offset", number=True),
    Column("END", "end_offset", number=True),
    Column("RECORDS", "records", number=True),
)
AT = (Column("OFFSET", "offset", number=True), Column("WRITTEN", lambda row: time_text(row["timestamp_ms"])))
PRODUCERS = (
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition", number=True),
    Column("PRODUCER", "producer_id", number=True),
    Column("EPOCH", "producer_epoch", number=True),
    Column("SEQUENCE", "last_sequence", number=True),
    Column("WRITTEN", lambda row: time_text(row["last_timestamp_ms"])),
    Column("TRANSACTION FROM", "transaction_start_offset", number=True),
    Column("COORDINATOR EPOCH", "coordinator_epoch", number=True, wide=True),
)


@fields(PARTITION)
@click.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC[:0,2-5]...]", shell_complete=topic_names)
@click.option("--under-replicated", is_flag=True, help="Those with replicas that are not in sync.")
@click.option("--under-min-isr", is_flag=True, help="Those with fewer replicas in sync than min.insync.replicas: no acks=all writes.")
@click.option("--at-min-isr", is_flag=True, help="Those with just min.insync.replicas replicas in sync.")
@click.option("--offline", is_flag=True, help="Those without a leader.")
@click.option("--not-preferred", is_flag=True, help="Those that are not led by their first replica.")
@click.option("--broker", type=int, metavar="N", shell_complete=broker_ids, help="Only those with a replica on this broker.")
@output_option
@bootstrap_option
def partitions(topics: tuple[str, ...], broker: int | None, output: Form, bootstrap: str, **lacking: bool) -> None:
    """List partitions: of all topics if none is named, and those only that lack one of the things asked for."""
    with told(), connected(bootstrap) as admin:
        if topics:
            found = [partition_document(tp.topic, one) for tp, one in chosen(admin, topics, "TOPIC").items()]
        else:
            names = sorted(topic.name for topic in admin.list_topics(internal=True))
            found = [partition_document(name, one) for name, topic in described(admin, names).items() for one in topic.partitions]
        least = _least(admin, {row["topic"] for row in found}) if lacking["under_min_isr"] or lacking["at_min_isr"] else {}
    wanted = {name for name, asked in lacking.items() if asked}
    documents = [
        row
        for row in found
        if (broker is None or broker in row["replicas"]) and (not wanted or wanted & _lacks(row, least.get(row["topic"], 1)))
    ]
    output.show(documents, PARTITIONS)


def _lacks(row: dict[str, Any], least: int) -> set[str]:
    replicas, in_sync = row["replicas"], len(row["isr"])
    return {
        name
        for name, is_so in (
            ("offline", row["leader"] is None),
            ("under_replicated", in_sync < len(replicas)),
            ("under_min_isr", in_sync < least),
            ("at_min_isr", in_sync == least),
            ("not_preferred", row["leader"] != replicas[0]),
        )
        if is_so
    }


def _least(admin: Admin, topics: Iterable[str]) -> dict[str, int]:
    """min.insync.replicas of topics. Raises: KafkaError."""
    from ottla.client.admin.results import Resource
    from ottla.wire.errors import KafkaError

    name = "min.insync.replicas"
    least = {}
    for resource, entries in admin.describe_configs([Resource.topic(topic) for topic in sorted(topics)], names=[name]).items():
        if isinstance(entries, KafkaError):
            raise entries
        least[resource.name] = int(entries[name].value or 1) if name in entries else 1
    return least


@fields(
    topic="its name",
    partition="its number",
    start_offset="of the oldest record; null: nobody can tell",
    end_offset="of the next record",
    records="offsets between the two; compaction and transactions leave fewer records than that",
    offset="with --at: of the first record that is not older; null: there is none",
    timestamp_ms="with --at: the time of that record; null: none, or not told",
)
@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC[:0,2-5]...", shell_complete=topic_names)
@click.option(
    "--at",
    metavar="TIME",
    help="Also the first offset that is not older: 2026-01-31T12:00:00, ms since 1970, -1h (an hour ago); newest: the latest timestamp.",
)
@output_option
@bootstrap_option
def offsets(topics: tuple[str, ...], at: str | None, output: Form, bootstrap: str) -> None:
    """Show where the logs of partitions begin and end, and how much lies between."""
    when = None if at is None else _when(at)
    with told(), connected(bootstrap) as admin:
        known = ends(admin, chosen(admin, topics, "TOPIC"))
        led = [tp for tp, (_, end) in known.items() if end is not None]
        found = {} if when is None or not led else admin.list_offsets(dict.fromkeys(led, when))
    documents = []
    for tp, (start, end) in known.items():
        outcome = found.get(tp)
        offset, timestamp = (-1, -1) if outcome is None or isinstance(outcome, Exception) else (outcome.offset, outcome.timestamp)
        documents.append(
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "start_offset": start,
                "end_offset": end,
                "records": None if start is None or end is None else end - start,
                "offset": offset if offset >= 0 else None,
                "timestamp_ms": timestamp if timestamp >= 0 else None,
            }
        )
    output.show(documents, OFFSETS if when is None else (*OFFSETS, *AT))


def _when(text: str) -> int:
    from ottla.client.fetch.offsets import MAX_TIMESTAMP

    if text == "newest":
        return MAX_TIMESTAMP
    if re.match(r"-\s*\d", text):
        return int(time.time() * 1000) - duration_ms(text.lstrip("- "), "--at")
    return time_ms(text, "--at")


@fields(
    topic="its name",
    partition="its number",
    producer_id="the producer",
    producer_epoch="how often that producer began anew",
    last_sequence="the number of its last record here",
    last_timestamp_ms="when it last wrote",
    transaction_start_offset="where its open transaction begins; null: none is open",
    coordinator_epoch="epoch of the coordinator of its last transaction; null: it had none",
)
@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC[:0,2-5]...", shell_complete=topic_names)
@output_option
@bootstrap_option
def producers(topics: tuple[str, ...], output: Form, bootstrap: str) -> None:
    """Show the idempotent and transactional producers that the leaders of partitions remember."""
    from ottla.wire.errors import KafkaError

    documents = []
    with told(), connected(bootstrap) as admin:
        for tp, found in sorted(admin.describe_producers(chosen(admin, topics, "TOPIC")).items()):
            if isinstance(found, KafkaError):
                raise type(found)(f"{tp}: {found}")
            documents += [
                {
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "producer_id": one.producer_id,
                    "producer_epoch": one.producer_epoch,
                    "last_sequence": one.last_sequence,
                    "last_timestamp_ms": one.last_timestamp if one.last_timestamp >= 0 else None,
                    "transaction_start_offset": one.transaction_start_offset if one.transaction_start_offset >= 0 else None,
                    "coordinator_epoch": one.coordinator_epoch if one.coordinator_epoch >= 0 else None,
                }
                for one in sorted(found, key=lambda one: one.producer_id)
            ]
    output.show(documents, PRODUCERS)
