"""`ottla transaction abort`: aborts transactions by transactional id, or ends those that hang in a partition.

    by id          the coordinator aborts the transaction in all partitions, and fences the producer
    in a partition a marker is written to the partition's leader; its coordinator does not learn of it

A marker in one partition tears a transaction that a coordinator still knows: the command refuses that without --force.
"""

from __future__ import annotations

from typing import NamedTuple

import click

import ottla
from ottla.base.ids import TopicPartition
from ottla.cli.common.admin import admin_client, admin_options
from ottla.cli.common.arguments import duration_ms
from ottla.cli.common.complete import topic_names, transactional_ids
from ottla.cli.common.confirmation import NOTHING_CHANGED, confirm, dry_run_option, yes_option
from ottla.cli.common.output_formats import OUTCOME, OutputFormat, fields, note
from ottla.cli.topic.lookup import select_partitions
from ottla.cli.transaction.blocking import MAX_TIMEOUT
from ottla.cli.transaction.list import described
from ottla.client.admin.calls import good
from ottla.client.admin.transaction_results import OpenTransaction, TransactionDescription, TransactionState
from ottla.wire.errors import InvalidTxnState, KafkaError

WRITING_MARKERS = (
    "its outcome is decided ({state}) and its markers are being written; ottla transaction describe shows where they are missing"
)
NO_TRANSACTION = "no open transaction"


class Marker(NamedTuple):
    """A transaction to end in one partition."""

    place: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int | None = None

    @property
    def text(self) -> str:
        where = "" if self.start_offset is None else f" from offset {self.start_offset}"
        return f"{self.place}: producer {self.producer_id} epoch {self.producer_epoch}{where}"


@fields(OUTCOME)
@click.command()
@click.argument("names", nargs=-1, metavar="[TRANSACTIONAL-ID...]", shell_complete=transactional_ids)
@click.option(
    "-t", "--topic", "topics", multiple=True, metavar="TOPIC[:0,2-5]", shell_complete=topic_names, help="Partitions to end it in."
)
@click.option("--start-offset", type=click.IntRange(min=0), metavar="N", help="Offset of its first record in the partition.")
@click.option("--hanging", is_flag=True, help="All that ottla transaction find-hanging finds.")
@click.option(
    "--max-transaction-timeout", "max_timeout", default=MAX_TIMEOUT, show_default=True, metavar="DURATION",
    help="With --hanging: only transactions without a write for this time.",
)  # fmt: skip
@click.option("--producer-id", type=int, metavar="N", help="Producer id, for brokers before Kafka 3.0.")
@click.option("--producer-epoch", type=int, metavar="N", help="Producer epoch, with --producer-id.")
@click.option("--coordinator-epoch", type=int, metavar="N", help="Coordinator epoch, with --producer-id; -1: unknown.")
@click.option("--force", is_flag=True, help="Write the marker even if a coordinator knows the transaction.")
@dry_run_option
@yes_option
@admin_options
def abort(
    names: tuple[str, ...],
    topics: tuple[str, ...],
    start_offset: int | None,
    hanging: bool,
    max_timeout: str,
    producer_id: int | None,
    producer_epoch: int | None,
    coordinator_epoch: int | None,
    force: bool,
    dry_run: bool,
    yes: bool,
    output: OutputFormat,
    bootstrap: str,
) -> None:
    """Abort the transactions of transactional ids, and fence their producers; or end those that hang in partitions.

    A transaction that hangs is named by -t TOPIC:PARTITION and --start-offset, or all by --hanging.
    """
    ways = [bool(names), start_offset is not None, hanging, producer_id is not None]
    if sum(ways) != 1:
        raise click.UsageError("expected TRANSACTIONAL-ID, --start-offset, --hanging or --producer-id")
    max_ms = duration_ms(max_timeout, "--max-transaction-timeout")
    with admin_client(bootstrap) as admin:
        if names:
            if topics:
                raise click.UsageError("a transactional id is aborted in all partitions; use it without -t")
            _abort_ids(admin, tuple(dict.fromkeys(names)), dry_run=dry_run, yes=yes, output=output)
            return
        if hanging:
            markers = [_marker(one) for one in _hanging(admin, topics, max_ms)]
        else:
            markers = [_named(admin, topics, start_offset, (producer_id, producer_epoch, coordinator_epoch), force=force)]
        if not markers:
            note("No transaction hangs.")
            return
        failed = _write(admin, markers, dry_run=dry_run, yes=yes)
    output.report([one.text for one in markers], failed, "would be aborted" if dry_run else "aborted")


def _abort_ids(admin: ottla.Admin, names: tuple[str, ...], *, dry_run: bool, yes: bool, output: OutputFormat) -> None:
    found = described(admin, names)
    open_ids = [name for name, one in found.items() if one.state is TransactionState.ONGOING]
    failed: dict[str, Exception] = {
        name: InvalidTxnState(WRITING_MARKERS.format(state=one.state.value)) for name, one in found.items() if one.state.is_decided
    }
    if dry_run:
        note(NOTHING_CHANGED)
    elif open_ids:
        count = f"{len(open_ids)} transaction{'s' if len(open_ids) > 1 else ''}"
        confirm(f"{count} would be aborted and the producers fenced.", (_described(found[name]) for name in open_ids), yes=yes)
        for name in open_ids:
            try:
                admin.force_terminate_transaction(name)
            except KafkaError as error:
                failed[name] = error
    idle = {name: NO_TRANSACTION for name in found if name not in open_ids}
    output.report(names, failed, "would be aborted" if dry_run else "aborted", idle)


def _described(one: TransactionDescription) -> str:
    kind = "" if one.has_timeout else ", prepared by two-phase commit"
    return f"{one.transactional_id}: {len(one.partitions)} partitions{kind}"


def _hanging(admin: ottla.Admin, topics: tuple[str, ...], max_ms: int) -> list[OpenTransaction]:
    partitions = list(select_partitions(admin, topics, "--topic")) if topics else None
    return admin.find_hanging_transactions(partitions, max_transaction_timeout_ms=max_ms)


def _marker(one: OpenTransaction) -> Marker:
    return Marker(one.place, one.producer_id, one.producer_epoch, one.coordinator_epoch, one.start_offset)


def _named(
    admin: ottla.Admin,
    topics: tuple[str, ...],
    start_offset: int | None,
    identity: tuple[int | None, int | None, int | None],
    *,
    force: bool,
) -> Marker:
    """The transaction that the options name. Raises: UsageError, ClickException, KafkaError."""
    places = list(select_partitions(admin, topics, "--topic"))
    if len(places) != 1:
        raise click.UsageError("expected one partition, as in -t orders:0")
    [place] = places
    if start_offset is None:
        producer_id, producer_epoch, coordinator_epoch = identity
        if producer_id is None or producer_epoch is None or coordinator_epoch is None:
            raise click.UsageError("--producer-id needs --producer-epoch and --coordinator-epoch")
        return Marker(place, producer_id, producer_epoch, coordinator_epoch)
    opened = good(admin.open_transactions([place])[place])
    one = next((one for one in opened if one.start_offset == start_offset), None)
    if one is None:
        known = ", ".join(str(one.start_offset) for one in opened)
        others = f"open transactions begin at {known}" if known else "it has no open transaction"
        raise click.ClickException(f"no open transaction of {place} begins at offset {start_offset}; {others}")
    if not force:
        _check_hangs(admin, one)
    return _marker(one)


def _check_hangs(admin: ottla.Admin, one: OpenTransaction) -> None:
    """Raises: ClickException, if a coordinator will end the transaction."""
    for listed in admin.list_transactions(producer_ids=[one.producer_id]):
        known = admin.describe_transactions([listed.transactional_id])[listed.transactional_id]
        if not isinstance(known, KafkaError) and known.producer_id == one.producer_id and one.place in known.partitions:
            raise click.ClickException(
                f"the transaction does not hang: it belongs to transactional id {known.transactional_id}, which is {known.state.value}. "
                f"Abort it in all partitions with ottla transaction abort {known.transactional_id}. --force ends it in this partition only."
            )


def _write(admin: ottla.Admin, markers: list[Marker], *, dry_run: bool, yes: bool) -> dict[str, Exception]:
    """Writes the markers; returns the errors."""
    if dry_run:
        note(NOTHING_CHANGED)
        return {}
    count = f"{len(markers)} transaction{'s' if len(markers) > 1 else ''}"
    confirm(f"{count} would be aborted in one partition each.", (one.text for one in markers), yes=yes)
    failed: dict[str, Exception] = {}
    for one in markers:
        try:
            admin.abort_transaction(
                one.place, producer_id=one.producer_id, producer_epoch=one.producer_epoch, coordinator_epoch=one.coordinator_epoch
            )
        except KafkaError as error:
            failed[one.text] = error
    return failed
