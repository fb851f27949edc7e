"""`ottla topic partitions`, `offsets` and `producers`."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import Any

import click

import ottla
from ottla.cli.common.admin import admin_client, admin_options
from ottla.cli.common.arguments import duration_ms, time_ms, time_text
from ottla.cli.common.complete import broker_ids, topic_names
from ottla.cli.common.output_formats import OutputFormat, fields
from ottla.cli.common.tables import PLACE, Column
from ottla.cli.topic.lookup import PARTITION, describe_topics, leader_cell, log_offsets, partition_document, select_partitions, state_colour
from ottla.client.admin.calls import good
from ottla.client.admin.results import Resource
from ottla.wire.errors import KafkaError

PARTITIONS = (
    *PLACE,
    Column("LEADER", leader_cell, number=True, colour=state_colour),
    Column("REPLICAS", "replicas"),
    Column("ISR", "isr", colour=state_colour),
    Column("OFFLINE", "offline"),
    Column("LEADER-EPOCH", "leader_epoch", number=True, wide=True),
)
OFFSETS = (
    *PLACE,
    Column("LOG-START-OFFSET", "start_offset", number=True),
    Column("LOG-END-OFFSET", "end_offset", number=True),
    Column("RECORDS", "records", number=True),
)
AT = (Column("OFFSET", "offset", number=True), Column("TIMESTAMP", lambda row: time_text(row["timestamp_ms"])))
PRODUCERS = (
    *PLACE,
    Column("PRODUCER-ID", "producer_id", number=True),
    Column("PRODUCER-EPOCH", "producer_epoch", number=True),
    Column("LAST-SEQUENCE", "last_sequence", number=True),
    Column("LAST-TIMESTAMP", lambda row: time_text(row["last_timestamp_ms"])),
    Column("TRANSACTION-START-OFFSET", "transaction_start_offset", number=True),
    Column("COORDINATOR-EPOCH", "coordinator_epoch", number=True, wide=True),
)


@fields(PARTITION)
@click.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC[:0,2-5]...]", shell_complete=topic_names)
@click.option("--under-replicated", is_flag=True, help="Only with replicas that are not in sync.")
@click.option("--under-min-isr", is_flag=True, help="Only with an ISR below min.insync.replicas: acks=all writes fail.")
@click.option("--at-min-isr", is_flag=True, help="Only with exactly min.insync.replicas replicas in sync.")
@click.option("--offline", is_flag=True, help="Only without a leader.")
@click.option("--not-preferred", is_flag=True, help="Only not led by their preferred replica, the first one.")
@click.option("--broker", type=int, metavar="N", shell_complete=broker_ids, help="Only with a replica on this broker.")
@admin_options
def partitions(topics: tuple[str, ...], broker: int | None, output: OutputFormat, bootstrap: str, **conditions: bool) -> None:
    """List partitions of topics that meet one of the conditions. [default: all]"""
    with admin_client(bootstrap) as admin:
        if topics:
            rows = [partition_document(tp.topic, one) for tp, one in select_partitions(admin, topics, "TOPIC").items()]
        else:
            names = sorted(topic.name for topic in admin.list_topics(internal=True))
            rows = [partition_document(name, one) for name, topic in describe_topics(admin, names).items() for one in topic.partitions]
        min_isr = _min_isr(admin, {row["topic"] for row in rows}) if conditions["under_min_isr"] or conditions["at_min_isr"] else {}
    selected = {name for name, is_set in conditions.items() if is_set}
    documents = [
        row
        for row in rows
        if (broker is None or broker in row["replicas"]) and (not selected or selected & _conditions(row, min_isr.get(row["topic"], 1)))
    ]
    output.show(documents, PARTITIONS)


def _conditions(row: dict[str, Any], min_isr: int) -> set[str]:
    replicas, in_sync = row["replicas"], len(row["isr"])
    return {
        name
        for name, is_so in (
            ("offline", row["leader"] is None),
            ("under_replicated", in_sync < len(replicas)),
            ("under_min_isr", in_sync < min_isr),
            ("at_min_isr", in_sync == min_isr),
            ("not_preferred", row["leader"] != replicas[0]),
        )
        if is_so
    }


def _min_isr(admin: ottla.Admin, topics: Iterable[str]) -> dict[str, int]:
    """min.insync.replicas of topics. Raises: KafkaError."""
    name = "min.insync.replicas"
    values = {}
    for resource, entries in admin.describe_configs([Resource.topic(topic) for topic in sorted(topics)], names=[name]).items():
        found = good(entries)
        values[resource.name] = int(found[name].value or 1) if name in found else 1
    return values


@fields(
    topic="topic",
    partition="partition",
    start_offset="log start offset; null: unknown",
    end_offset="log end offset; null: unknown",
    records="number of offsets between the two; there are fewer records after compaction and with transactions",
    offset="with --at: offset of the first record at or after the time; null: none",
    timestamp_ms="with --at: timestamp of that record; null: none or unknown",
)
@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC[:0,2-5]...", shell_complete=topic_names)
@click.option(
    "--at",
    metavar="TIME",
    help="Add the first offset at a time: 2026-01-31T12:00:00, ms since 1970, -1h (an hour ago), or newest (largest timestamp).",
)
@admin_options
def offsets(topics: tuple[str, ...], at: str | None, output: OutputFormat, bootstrap: str) -> None:
    """Show log start and log end offsets of partitions."""
    when = None if at is None else _when(at)
    with admin_client(bootstrap) as admin:
        known = log_offsets(admin, select_partitions(admin, topics, "TOPIC"))
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
    topic="topic",
    partition="partition",
    producer_id="producer id",
    producer_epoch="producer epoch",
    last_sequence="sequence number of its last record",
    last_timestamp_ms="time of its last write",
    transaction_start_offset="first offset of its open transaction; null: none",
    coordinator_epoch="coordinator epoch of its last transaction; null: none",
)
@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC[:0,2-5]...", shell_complete=topic_names)
@click.option("--broker", type=int, metavar="N", shell_complete=broker_ids, help="The replicas of this broker. [default: the leaders]")
@admin_options
def producers(topics: tuple[str, ...], broker: int | None, output: OutputFormat, bootstrap: str) -> None:
    """Show the producer state of partitions: idempotent and transactional producers."""
    documents = []
    with admin_client(bootstrap) as admin:
        for tp, found in sorted(admin.describe_producers(select_partitions(admin, topics, "TOPIC"), broker=broker).items()):
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
