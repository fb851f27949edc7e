"""`ottla transaction find-hanging` and `ottla transaction blocking`.

`blocking` answers what kafka-transactions.sh does not: which partitions' last stable offsets are held back, since when, by which
transactional id and client, and which groups wait. STATUS is what happens to the transaction:

    ongoing     its producer has not ended it, and its timeout is not over
    overdue     its timeout is over, and its coordinator has not aborted it
    prepared    two-phase commit: it waits for its producer, without a timeout
    completing  its outcome is decided, and its marker is not written yet
    hanging     no coordinator will end it: ottla transaction abort
"""

from __future__ import annotations

import time
from typing import Any

import click

from ottla.base.ids import TopicPartition
from ottla.cli.common import tables
from ottla.cli.common.admin import admin_client, admin_options
from ottla.cli.common.arguments import duration_ms, duration_text, numbers_by_topic, partitions_text, time_text
from ottla.cli.common.complete import broker_ids, topic_names
from ottla.cli.common.output_formats import OutputFormat, fields, note
from ottla.cli.common.tables import PLACE, Column, Row
from ottla.cli.topic.lookup import select_partitions
from ottla.cli.transaction.list import client_text
from ottla.client.admin.transaction_results import BlockedGroup, BlockedPartition, BlockingTransaction, OpenTransaction
from ottla.wire.errors import KafkaError

#: Kafka's default of --max-transaction-timeout, and of transaction.max.timeout.ms.
MAX_TIMEOUT = "15m"
HANGING = {
    "topic": "topic",
    "partition": "partition",
    "producer_id": "producer id",
    "producer_epoch": "producer epoch",
    "coordinator_epoch": "coordinator epoch of the producer's last marker there; null: none",
    "start_offset": "offset of its first record",
    "last_write_ms": "time of its last write; null: unknown",
    "transactional_id": "transactional id with this producer id; null: no coordinator has it",
}
COLOURS = {"hanging": "red", "overdue": "red", "completing": "yellow", "prepared": "yellow"}


def _time_cell(ms: int | None) -> object:
    """A duration on a terminal, milliseconds in a pipe."""
    return ms if ms is None or not tables.is_terminal() else duration_text(ms)


PRODUCER = (Column("PRODUCER-ID", "producer_id", number=True), Column("PRODUCER-EPOCH", "producer_epoch", number=True))
FOUND = (
    *PLACE,
    *PRODUCER,
    Column("COORDINATOR-EPOCH", "coordinator_epoch", number=True),
    Column("START-OFFSET", "start_offset", number=True),
    Column("LAST-WRITE", lambda row: time_text(row["last_write_ms"])),
    Column("TRANSACTIONAL-ID", "transactional_id"),
)
BLOCKING = (
    *PLACE,
    Column("LAST-STABLE-OFFSET", "last_stable_offset", number=True),
    Column("HELD-BACK", "held_back", number=True),
    Column("OPEN-FOR", lambda row: _time_cell(row["open_ms"]), number=True),
    Column("STATUS", "status", colour=lambda row: COLOURS.get(row["status"])),
    Column("TRANSACTIONAL-ID", "transactional_id"),
    PRODUCER[0],
    Column("CLIENT", client_text),
    Column("GROUPS", lambda row: [one["group"] for one in row["groups"]]),
    Column("PRODUCER-EPOCH", "producer_epoch", number=True, wide=True),
    Column("START-OFFSET", "start_offset", number=True, wide=True),
    Column("LOG-END-OFFSET", "end_offset", number=True, wide=True),
    Column("STATE", "state", wide=True),
    Column("TIMEOUT", lambda row: _time_cell(row["timeout_ms"]), number=True, wide=True),
    Column("COORDINATOR", "coordinator", number=True, wide=True),
    Column("LAST-WRITE", lambda row: time_text(row["last_write_ms"]), wide=True),
    Column("PENDING-OFFSETS", lambda row: _pending_text(row["groups"]), wide=True),
)


@fields(HANGING)
@click.command(name="find-hanging")
@click.argument("topics", nargs=-1, metavar="[TOPIC[:0,2-5]...]", shell_complete=topic_names)
@click.option("--broker", type=int, metavar="N", shell_complete=broker_ids, help="Search the replicas of this broker.")
@click.option(
    "--max-transaction-timeout", "max_timeout", default=MAX_TIMEOUT, show_default=True, metavar="DURATION",
    help="Only transactions without a write for this time; set it to transaction.max.timeout.ms of the brokers.",
)  # fmt: skip
@admin_options
def find_hanging(topics: tuple[str, ...], broker: int | None, max_timeout: str, output: OutputFormat, bootstrap: str) -> None:
    """Find open transactions that no coordinator will end. [default: in all partitions]

    Exit code 1 if there is one. End it with ottla transaction abort.
    """
    max_ms = duration_ms(max_timeout, "--max-transaction-timeout")
    with admin_client(bootstrap) as admin:
        partitions = list(select_partitions(admin, topics, "TOPIC")) if topics else None
        found = admin.find_hanging_transactions(partitions, broker=broker, max_transaction_timeout_ms=max_ms)
    output.show([hanging_document(one) for one in found], FOUND)
    if found:
        first = found[0]
        note(f"To end one: ottla transaction abort -t {first.topic}:{first.partition} --start-offset {first.start_offset}")
        raise SystemExit(1)


def hanging_document(one: OpenTransaction) -> dict[str, Any]:
    """A document with the fields of `HANGING`."""
    return {
        "topic": one.topic,
        "partition": one.partition,
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "coordinator_epoch": one.coordinator_epoch if one.coordinator_epoch >= 0 else None,
        "start_offset": one.start_offset,
        "last_write_ms": one.last_timestamp if one.last_timestamp >= 0 else None,
        "transactional_id": one.transactional_id,
    }


@fields(
    HANGING,
    {
        "last_stable_offset": "last stable offset: read_committed reads up to it",
        "end_offset": "log end offset",
        "held_back": "number of offsets between the two",
        "holds": "whether this transaction holds the last stable offset: the oldest one there",
        "status": "ongoing, overdue, prepared, completing, hanging",
        "since_ms": "start of the transaction; null: unknown",
        "open_ms": "time since then, by the clock of this machine; null: unknown",
        "state": "state of the transactional id; null: no coordinator has the producer id, also in the following fields",
        "timeout_ms": "timeout of its transactions; null: none",
        "coordinator": "broker id of the coordinator",
        "client_id": "client.id of the client that used the id last; null: unknown",
        "client_host": "host of that client; null: unknown",
        "groups[].group": "group that waits: with a committed offset at or below the last stable offset, or with pending offsets",
        "groups[].committed_offset": "its committed offset; null for pending offsets",
        "groups[].pending.*": "partitions by topic whose offsets are pending in the transaction; only in __consumer_offsets",
    },
)
@click.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC[:0,2-5]...]", shell_complete=topic_names)
@click.option("--longer-than", default="0s", show_default=True, metavar="DURATION", help="Only partitions blocked for longer, such as 1m.")
@click.option("--all", "everything", is_flag=True, help="Also the younger open transactions of blocked partitions.")
@click.option("--no-groups", is_flag=True, help="Do not look for groups that wait.")
@admin_options
def blocking(topics: tuple[str, ...], longer_than: str, everything: bool, no_groups: bool, output: OutputFormat, bootstrap: str) -> None:
    """Show what holds back the last stable offset of partitions, and the groups that wait. [default: all partitions]

    A line for each partition, with the oldest open transaction: that one holds the last stable offset.
    """
    longer_ms = duration_ms(longer_than, "--longer-than")
    with admin_client(bootstrap) as admin:
        partitions = list(select_partitions(admin, topics, "TOPIC")) if topics else None
        found = admin.find_blocked_partitions(partitions, longer_than_ms=longer_ms, groups=not no_groups)
    now_ms = int(time.time() * 1000)
    documents = [
        document
        for one in found.values()
        if not isinstance(one, KafkaError)
        for document in blocking_documents(one, now_ms)[: None if everything else 1]
    ]
    output.show(documents, BLOCKING)
    failed = {tp: one for tp, one in found.items() if isinstance(one, KafkaError)}
    for tp, error in failed.items():
        note(f"Error: {tp}: {error}")
    if failed:
        raise SystemExit(1)


def blocking_documents(blocked: BlockedPartition, now_ms: int) -> list[dict[str, Any]]:
    """A document for each open transaction of a partition."""
    return [_blocking_document(blocked, one, now_ms) for one in blocked.transactions]


def _blocking_document(blocked: BlockedPartition, one: BlockingTransaction, now_ms: int) -> dict[str, Any]:
    known = one.description
    return {
        **hanging_document(one.transaction),
        "last_stable_offset": blocked.last_stable_offset,
        "end_offset": blocked.end_offset,
        "held_back": blocked.held_back,
        "holds": one is blocked.transactions[0],
        "status": one.status.value,
        "since_ms": one.since_ms,
        "open_ms": None if one.since_ms is None else max(now_ms - one.since_ms, 0),
        "state": None if known is None else known.state.value,
        "timeout_ms": known.timeout_ms if known is not None and known.has_timeout else None,
        "coordinator": None if known is None else known.coordinator.id,
        "client_id": None if known is None else known.client_id,
        "client_host": None if known is None else known.client_host,
        "groups": [_group_document(group) for group in sorted(blocked.groups, key=lambda one: one.group_id)],
    }


def _group_document(group: BlockedGroup) -> dict[str, Any]:
    return {"group": group.group_id, "committed_offset": group.committed_offset, "pending": numbers_by_topic(group.pending)}


def _pending_text(groups: list[Row]) -> str:
    several = {
        one["group"]: [TopicPartition(topic, number) for topic, numbers in one["pending"].items() for number in numbers] for one in groups
    }
    return " ".join(f"{group}={partitions_text(partitions)}" for group, partitions in several.items() if partitions)
