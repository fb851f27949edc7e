"""`ottla transaction list` and `ottla transaction describe`."""

from __future__ import annotations

import time
from fnmatch import fnmatchcase
from typing import Any

import click

import ottla
from ottla.base.ids import TopicPartition
from ottla.base.options import suggestion
from ottla.cli.common import tables
from ottla.cli.common.admin import admin_client, admin_options
from ottla.cli.common.arguments import duration_ms, duration_text, time_text
from ottla.cli.common.complete import transactional_ids
from ottla.cli.common.output_formats import OutputFormat, fields
from ottla.cli.common.tables import PLACE, Column, Row
from ottla.client.admin.transaction_results import OpenTransaction, TransactionDescription
from ottla.wire.errors import KafkaError, TransactionalIdNotFound

#: Kafka's states that a coordinator stores.
STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
TRANSACTION = {
    "transactional_id": "transactional id",
    "state": "Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort",
    "producer_id": "producer id",
}
COLOURS = {"Ongoing": "green", "PrepareCommit": "yellow", "PrepareAbort": "yellow"}


def _colour(row: Row) -> str | None:
    return COLOURS.get(row["state"])


LISTED = (
    Column("TRANSACTIONAL-ID", "transactional_id"),
    Column("COORDINATOR", "coordinator", number=True),
    Column("PRODUCER-ID", "producer_id", number=True),
    Column("STATE", "state", colour=_colour),
)
PARTITIONS = (
    *PLACE,
    Column("START-OFFSET", "start_offset", number=True),
    Column("LAST-STABLE-OFFSET", "last_stable_offset", number=True),
    Column("LOG-END-OFFSET", "end_offset", number=True),
    Column("LAST-WRITE", lambda row: time_text(row["last_write_ms"])),
)


@fields(TRANSACTION, coordinator="broker id of the coordinator")
@click.command(name="list")
@click.argument("patterns", nargs=-1, metavar="[PATTERN...]", shell_complete=transactional_ids)
@click.option(
    "--state", "states", multiple=True, type=click.Choice(STATES, case_sensitive=False), help="Only ids in this state; repeatable."
)
@click.option("--producer-id", "producer_ids", multiple=True, type=int, metavar="N", help="Only ids with this producer id; repeatable.")
@click.option("--longer-than", metavar="DURATION", help="Only ids whose last transaction began longer ago, such as 5m.")
@admin_options
def list_(
    patterns: tuple[str, ...],
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    longer_than: str | None,
    output: OutputFormat,
    bootstrap: str,
) -> None:
    """List transactional ids that match one of the patterns, from all coordinators. [default: all]"""
    longer_than_ms = None if longer_than is None else duration_ms(longer_than, "--longer-than")
    with admin_client(bootstrap) as admin:
        found = admin.list_transactions(states=states, producer_ids=producer_ids, longer_than_ms=longer_than_ms)
    documents = [
        {
            "transactional_id": one.transactional_id,
            "coordinator": one.coordinator,
            "producer_id": one.producer_id,
            "state": one.state.value,
        }
        for one in found
        if not patterns or any(fnmatchcase(one.transactional_id, pattern) for pattern in patterns)
    ]
    output.show(documents, LISTED)


@fields(
    TRANSACTION,
    {
        "producer_epoch": "producer epoch",
        "timeout_ms": "timeout of a transaction; null: none (two-phase commit)",
        "start_ms": "start of the transaction; null: none",
        "duration_ms": "time since the start, by the clock of this machine; null: no transaction",
        "client_id": "client.id of the client that used the id last; null: unknown, or a broker of Apache Kafka",
        "client_host": "host of that client; null: unknown",
        "coordinator.id": "broker id of the coordinator",
        "coordinator.host": "host of the coordinator",
        "coordinator.port": "port of the coordinator",
        "partitions[].topic": "topic of a partition of the transaction; once it is decided, of one without a marker",
        "partitions[].partition": "partition",
        "partitions[].start_offset": "offset of the transaction's first record there; null: none yet",
        "partitions[].last_stable_offset": "last stable offset of the partition; null: unknown",
        "partitions[].end_offset": "log end offset; null: unknown",
        "partitions[].last_write_ms": "time of the producer's last write there; null: none",
        "partitions[].holds": "whether the transaction holds the last stable offset",
    },
)
@click.command()
@click.argument("names", nargs=-1, required=True, metavar="TRANSACTIONAL-ID...", shell_complete=transactional_ids)
@admin_options
def describe(names: tuple[str, ...], output: OutputFormat, bootstrap: str) -> None:
    """Show state, producer, client, timeout and partitions of transactional ids."""
    with admin_client(bootstrap) as admin:
        documents = [_document(one, _partitions(admin, one)) for one in described(admin, names).values()]
    output.each(documents, _print)


def described(admin: ottla.Admin, names: tuple[str, ...]) -> dict[str, TransactionDescription]:
    """Existing transactional ids. Raises: ClickException, KafkaError."""
    found: dict[str, TransactionDescription] = {}
    for name, outcome in admin.describe_transactions(names).items():
        if isinstance(outcome, TransactionalIdNotFound):
            raise click.ClickException(f"transactional id {name} does not exist{_suggested(admin, name)}")
        if isinstance(outcome, KafkaError):
            raise type(outcome)(f"transactional id {name}: {outcome}")
        found[name] = outcome
    return found


def _suggested(admin: ottla.Admin, name: str) -> str:
    try:
        return suggestion(name, [one.transactional_id for one in admin.list_transactions()])
    except KafkaError:
        return ""


def _partitions(admin: ottla.Admin, one: TransactionDescription) -> list[dict[str, Any]]:
    """The partitions of a transaction. Fields that the partition's leader does not report are null."""
    from ottla.client.fetch.offsets import LATEST

    if not one.partitions:
        return []
    opened = admin.open_transactions(one.partitions)
    latest: dict[TopicPartition | tuple[str, int], int] = dict.fromkeys(one.partitions, LATEST)
    stable = admin.list_offsets(latest, read_committed=True)
    ends = admin.list_offsets(latest)
    return [_partition(tp, one.producer_id, opened.get(tp), _offset(stable.get(tp)), _offset(ends.get(tp))) for tp in one.partitions]


def _offset(outcome: Any) -> int | None:
    return None if outcome is None or isinstance(outcome, KafkaError) else outcome.offset


def _partition(
    tp: TopicPartition, producer_id: int, opened: list[OpenTransaction] | KafkaError | None, stable: int | None, end: int | None
) -> dict[str, Any]:
    known = [] if opened is None or isinstance(opened, KafkaError) else opened
    own = next((one for one in known if one.producer_id == producer_id), None)
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "start_offset": None if own is None else own.start_offset,
        "last_stable_offset": stable,
        "end_offset": end,
        "last_write_ms": own.last_timestamp if own is not None and own.last_timestamp >= 0 else None,
        "holds": own is not None and own.start_offset == stable,
    }


def _document(one: TransactionDescription, partitions: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "transactional_id": one.transactional_id,
        "state": one.state.value,
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "timeout_ms": one.timeout_ms if one.has_timeout else None,
        "start_ms": one.start_ms,
        "duration_ms": None if one.start_ms is None else max(int(time.time() * 1000) - one.start_ms, 0),
        "client_id": one.client_id,
        "client_host": one.client_host,
        "coordinator": {"id": one.coordinator.id, "host": one.coordinator.host, "port": one.coordinator.port},
        "partitions": partitions,
    }


def client_text(document: Row) -> str | None:
    """A client as `id@host`; None if unknown."""
    client_id, host = document["client_id"], document["client_host"]
    return (f"{client_id or ''}@{host}" if host else client_id) or None


def _print(document: dict[str, Any], output: OutputFormat) -> None:
    coordinator, client, state = document["coordinator"], client_text(document), document["state"]
    if document["duration_ms"] is not None and state not in ("CompleteCommit", "CompleteAbort"):
        state += f" for {duration_text(document['duration_ms'])}"
    title = [
        document["transactional_id"],
        state,
        f"timeout {'none' if document['timeout_ms'] is None else duration_text(document['timeout_ms'])}",
        f"producer {document['producer_id']} epoch {document['producer_epoch']}",
        f"coordinator {coordinator['id']} ({coordinator['host']}:{coordinator['port']})",
        f"client {client}" if client else "client unknown",
    ]
    if tables.is_terminal() and not document["partitions"]:
        click.echo("  ".join(title))
    elif tables.is_terminal():
        output.table(document["partitions"], PARTITIONS, title="  ".join(title))
    else:
        head = {name: document[name] for name in ("transactional_id", "state", "producer_id", "producer_epoch")}
        rows = [{**head, **one} for one in document["partitions"]] or [{**head, **dict.fromkeys(_PARTITION_FIELDS)}]
        output.table(rows, (*LISTED[:1], LISTED[3], LISTED[2], Column("PRODUCER-EPOCH", "producer_epoch", number=True), *PARTITIONS))


_PARTITION_FIELDS = ("topic", "partition", "start_offset", "last_stable_offset", "end_offset", "last_write_ms")
