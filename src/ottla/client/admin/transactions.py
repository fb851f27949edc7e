"""Admin requests about transactions: list, describe, abort, fence, and find those that hang.

    await admin.list_transactions(states=["Ongoing"], longer_than_ms=60_000)
    await admin.find_hanging_transactions()
    await admin.abort_transaction(("orders", 0), start_offset=4711)

Each broker lists the transactional ids that it coordinates. A partition's leader lists the open transactions in its producer state. A
transaction hangs if it is open in a partition, and no coordinator will write a marker there. Only `abort_transaction` ends it.

Source: KIP-664, KIP-994, KIP-1152; KIP-939 for `force_terminate_transaction`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable
from typing import NamedTuple

from msgspec.structs import replace

from ottla.base.ids import TopicPartition, as_partition
from ottla.client.admin import partitions as of_partitions
from ottla.client.admin import topics as of_topics
from ottla.client.admin import transaction_results as t
from ottla.client.admin.calls import HasCalls, Outcome, each_once, failed, good
from ottla.client.admin.results import ActiveProducer, Node
from ottla.client.transport.routing import Share, ask_leaders
from ottla.wire import messages as m
from ottla.wire.errors import (
    BrokerNotAvailable,
    InvalidTxnState,
    KafkaError,
    LeaderNotAvailable,
    TransactionalIdNotFound,
    UnknownTopicOrPartition,
    error_for,
)
from ottla.wire.messages.describe_transactions import TransactionState as DescribedState
from ottla.wire.messages.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic

Partition = TopicPartition | tuple[str, int]
#: First versions of ListTransactions with a duration, and with a pattern.
DURATION_SINCE = 1
PATTERN_SINCE = 2
#: Age from which an open transaction may hang: the default of transaction.max.timeout.ms.
MAX_TRANSACTION_TIMEOUT_MS = 15 * 60_000
#: Partitions in one DescribeProducers request.
PARTITIONS_AT_ONCE = 500


class Coordinated(NamedTuple):
    """An open transaction of a partition, and its transactional id; None if no coordinator has the producer id."""

    transaction: t.OpenTransaction
    description: t.TransactionDescription | None

    @property
    def hangs(self) -> bool:
        """Whether no coordinator will write a marker to the partition."""
        return self.description is None or self.transaction.place not in self.description.partitions


async def list_transactions(
    self: HasCalls,
    *,
    states: Iterable[t.TransactionState | str] = (),
    producer_ids: Iterable[int] = (),
    longer_than_ms: int | None = None,
    pattern: str | None = None,
    timeout_ms: float | None = None,
) -> list[t.TransactionListing]:
    """Transactional ids of all coordinators, in order; optionally only those in these states, with these producer ids, whose transaction
    began more than `longer_than_ms` ago, or whose whole id matches the RE2 `pattern`.

    Raises: the error of a broker that does not answer, since the list would be incomplete; BrokerIncompatible for `longer_than_ms` before
    Kafka 3.8 and `pattern` before Kafka 4.1. Source: KIP-664, KIP-994, KIP-1152.

    Example: `admin.list_transactions(states=["Ongoing"], longer_than_ms=60_000)`.
    """
    request = m.ListTransactionsRequest(
        state_filters=[str(t.TransactionState(one)) for one in states],
        producer_id_filters=list(producer_ids),
        duration_filter=-1 if longer_than_ms is None else longer_than_ms,
        transactional_id_pattern=pattern,
    )
    at_least = PATTERN_SINCE if pattern is not None else DURATION_SINCE if longer_than_ms is not None else 0
    nodes = await self._calls.brokers(self._calls.limit_ms(timeout_ms))
    answers = await self._calls.each_broker(
        nodes, request, lambda response: response.transaction_states, timeout_ms, "listing transactions of broker", at_least=at_least
    )
    # If its coordinator changes meanwhile, an id may be listed twice.
    found = {
        one.transactional_id: t.TransactionListing(one.transactional_id, node, one.producer_id, t.TransactionState(one.transaction_state))
        for node, answer in answers.items()
        for one in good(answer)
    }
    return [found[name] for name in sorted(found)]


async def describe_transactions(
    self: HasCalls, transactional_ids: Iterable[str], *, timeout_ms: float | None = None
) -> dict[str, Outcome[t.TransactionDescription]]:
    """State, producer, timeout and partitions of transactional ids. TransactionalIdNotFound for an id that does not exist.

    Example: `admin.describe_transactions(["billing-1", "billing-2"])`.
    """

    async def ask(node: int, share: dict[str, None], left_ms: float) -> dict[str, Outcome[t.TransactionDescription]]:
        broker = self._calls.network.cluster.brokers[node]
        where = Node(broker.node_id, broker.host, broker.port, broker.rack)
        response = await self._calls.network.ask(node, m.DescribeTransactionsRequest(transactional_ids=list(share)))
        return {one.transactional_id: failed(one) or _described(one, where) for one in response.transaction_states}

    return await self._calls.by_coordinator(
        each_once(transactional_ids), ask, timeout_ms, "describing transactional id", coordinators=self._calls.transaction_coordinators
    )


async def describe_transaction(self: HasCalls, transactional_id: str, *, timeout_ms: float | None = None) -> t.TransactionDescription:
    """One transactional id. Raises: TransactionalIdNotFound and the like. Example: `admin.describe_transaction("billing-1")`."""
    return good((await describe_transactions(self, [transactional_id], timeout_ms=timeout_ms))[transactional_id])


async def fence_producers(
    self: HasCalls,
    transactional_ids: Iterable[str],
    *,
    transaction_timeout_ms: int | None = None,
    timeout_ms: float | None = None,
) -> dict[str, Outcome[t.ProducerIdentity]]:
    """Fence the producers of transactional ids, and abort their transactions. Returns the identity that fences them.

    An id that does not exist is created. `transaction_timeout_ms` is the id's timeout until a producer uses it again, by default
    `request_timeout_ms`. Source: KIP-360, Kafka's fenceProducers.

    Example: `admin.fence_producers(["billing-1"])`.
    """
    lasts_ms = self._calls.options.request_timeout_ms if transaction_timeout_ms is None else transaction_timeout_ms

    async def fence(node: int, transactional_id: str) -> Outcome[t.ProducerIdentity]:
        request = m.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=lasts_ms)
        try:
            response = await self._calls.network.ask(node, request)
        except KafkaError as error:
            return error
        return failed(response) or t.ProducerIdentity(response.producer_id, response.producer_epoch)

    async def ask(node: int, share: dict[str, None], left_ms: float) -> dict[str, Outcome[t.ProducerIdentity]]:
        return dict(zip(share, await asyncio.gather(*(fence(node, one) for one in share)), strict=True))

    return await self._calls.by_coordinator(
        each_once(transactional_ids), ask, timeout_ms, "fencing transactional id", coordinators=self._calls.transaction_coordinators
    )


async def force_terminate_transaction(self: HasCalls, transactional_id: str, *, timeout_ms: float | None = None) -> t.ProducerIdentity:
    """Abort the transaction of a transactional id, also a prepared one of two-phase commit, and fence its producer.

    Does not decide what other participants of a two-phase commit did: abort it only if these aborted, too. Unlike Java's method it does not
    create the id. Raises: TransactionalIdNotFound and the like. Source: KIP-939.

    Example: `admin.force_terminate_transaction("billing-1")`.
    """
    await describe_transaction(self, transactional_id, timeout_ms=timeout_ms)
    return good((await fence_producers(self, [transactional_id], timeout_ms=timeout_ms))[transactional_id])


async def abort_transaction(
    self: HasCalls,
    partition: Partition,
    *,
    start_offset: int | None = None,
    producer_id: int | None = None,
    producer_epoch: int | None = None,
    coordinator_epoch: int | None = None,
    timeout_ms: float | None = None,
) -> None:
    """Write an abort marker into one partition, to end a transaction that hangs there. Its coordinator does not learn of it.

    Name the transaction by the offset of its first record; or, for brokers before Kafka 3.0, which do not describe producers, by producer
    id, producer epoch and coordinator epoch (-1 or None: unknown). If a coordinator knows the transaction, use
    `force_terminate_transaction`: a marker in one partition tears it.

    Raises: InvalidTxnState if no open transaction begins at `start_offset`; InvalidProducerEpoch, TransactionCoordinatorFenced,
    ClusterAuthorizationFailed and the like; ValueError. Source: KIP-664.

    Example: `admin.abort_transaction(("orders", 0), start_offset=1000)`.
    """
    tp = as_partition(partition)
    limit_ms = self._calls.limit_ms(timeout_ms)
    if start_offset is not None:
        if producer_id is not None or producer_epoch is not None or coordinator_epoch is not None:
            raise ValueError("name the transaction by start_offset, or by producer_id, producer_epoch and coordinator_epoch")
        one = await _open_at(self, tp, start_offset, limit_ms)
        producer_id, producer_epoch, coordinator_epoch = one.producer_id, one.producer_epoch, one.coordinator_epoch
    if producer_id is None or producer_epoch is None:
        raise ValueError("name the transaction by start_offset, or by producer_id, producer_epoch and coordinator_epoch")
    marker = WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=tp.topic, partition_indexes=[tp.partition])],
        # A producer without a marker has no coordinator epoch. 0 is at most that of any coordinator.
        coordinator_epoch=max(coordinator_epoch or 0, 0),
    )

    async def ask(node: int, share: Share[None]) -> dict[TopicPartition, Outcome[None]]:
        response = await self._calls.network.ask(node, m.WriteTxnMarkersRequest(markers=[marker]))
        codes = [one.error_code for result in response.markers for topic in result.topics for one in topic.partitions]
        return {tp: error_for(codes[0], f"{tp}: {error_for(codes[0])}") if codes and codes[0] else None}

    doing = "aborting the transaction in"
    good((await ask_leaders(self._calls.network, {tp: None}, ask, timeout_ms=limit_ms, doing=doing, patient=False))[tp])


async def _open_at(self: HasCalls, tp: TopicPartition, start_offset: int, limit_ms: float) -> t.OpenTransaction:
    """Raises: InvalidTxnState, and the partition's error."""
    for one in good((await open_transactions(self, [tp], timeout_ms=limit_ms))[tp]):
        if one.start_offset == start_offset:
            return one
    raise InvalidTxnState(f"{tp}: no open transaction begins at offset {start_offset}")


async def open_transactions(
    self: HasCalls, partitions: Iterable[Partition], *, broker: int | None = None, timeout_ms: float | None = None
) -> dict[TopicPartition, Outcome[list[t.OpenTransaction]]]:
    """The open transactions of partitions by start offset, from the partitions' leaders or from `broker`, which must have a replica.

    Example: `admin.open_transactions([("orders", 0)])`.
    """
    found: dict[TopicPartition, Outcome[list[t.OpenTransaction]]] = {}
    wanted = [as_partition(tp) for tp in partitions]
    for at in range(0, len(wanted), PARTITIONS_AT_ONCE):
        some = wanted[at : at + PARTITIONS_AT_ONCE]
        answers = await of_partitions.describe_producers(self, some, broker=broker, timeout_ms=timeout_ms)
        found |= {tp: one if isinstance(one, KafkaError) else _open(tp, one) for tp, one in answers.items()}
    return found


async def find_hanging_transactions(
    self: HasCalls,
    partitions: Iterable[Partition] | None = None,
    *,
    broker: int | None = None,
    max_transaction_timeout_ms: int = MAX_TRANSACTION_TIMEOUT_MS,
    timeout_ms: float | None = None,
) -> list[t.OpenTransaction]:
    """Open transactions that no coordinator will end: of these partitions, or of all that have a replica on `broker`, or of all.

    Only transactions without a write for `max_transaction_timeout_ms` are candidates: younger ones may be about to be registered. Set it to
    the brokers' `transaction.max.timeout.ms`. Raises: the error of a partition or a broker that does not answer. Source: KIP-664.

    Example: `admin.find_hanging_transactions([("orders", 0)], max_transaction_timeout_ms=900_000)`.
    """
    wanted, errors = await searched(self, partitions, broker=broker, timeout_ms=timeout_ms)
    for error in errors.values():
        raise error
    before_ms = time.time() * 1000 - max_transaction_timeout_ms
    answers = await open_transactions(self, wanted, broker=broker, timeout_ms=timeout_ms)
    candidates = [one for tp in wanted for one in good(answers[tp]) if one.last_timestamp < before_ms]
    hanging = [one.transaction for one in await coordinated(self, candidates, timeout_ms=timeout_ms) if one.hangs]
    # A transaction that ended between the two requests would look like one that hangs.
    places = list(dict.fromkeys(one.place for one in hanging))
    again = await open_transactions(self, places, broker=broker, timeout_ms=timeout_ms)
    still = {(one.place, one.producer_id, one.start_offset) for tp in places for one in good(again[tp])}
    return [one for one in hanging if (one.place, one.producer_id, one.start_offset) in still]


async def coordinated(self: HasCalls, transactions: Collection[t.OpenTransaction], *, timeout_ms: float | None = None) -> list[Coordinated]:
    """Each transaction with what its coordinator knows.

    Raises: the error of a broker that does not answer.
    """
    if not transactions:
        return []
    producer_ids = sorted({one.producer_id for one in transactions})
    listed = await list_transactions(self, producer_ids=producer_ids, timeout_ms=timeout_ms)
    names = {one.producer_id: one.transactional_id for one in listed if one.producer_id in producer_ids}
    descriptions: dict[str, t.TransactionDescription] = {}
    for name, outcome in (await describe_transactions(self, set(names.values()), timeout_ms=timeout_ms)).items():
        # It may have expired meanwhile.
        if not isinstance(outcome, TransactionalIdNotFound):
            descriptions[name] = good(outcome)
    found: list[Coordinated] = []
    for one in transactions:
        transactional_id = names.get(one.producer_id)
        described = descriptions.get(transactional_id) if transactional_id is not None else None
        found.append(Coordinated(replace(one, transactional_id=transactional_id), described))
    return found


async def searched(
    self: HasCalls, partitions: Iterable[Partition] | None, *, broker: int | None, timeout_ms: float | None
) -> tuple[list[TopicPartition], dict[TopicPartition, KafkaError]]:
    """The partitions of a search, these or all, only those with a replica on `broker` if it is set; and those without a leader, or that do
    not exist, with their error. Raises: BrokerNotAvailable; KafkaError, if topics cannot be listed or described.
    """
    if broker is not None and broker not in await self._calls.brokers(self._calls.limit_ms(timeout_ms)):
        raise BrokerNotAvailable(self._calls.network.absent(broker))
    named = None if partitions is None else {as_partition(tp) for tp in partitions}
    if named is None:
        topics = [one.name for one in await of_topics.list_topics(self, internal=True, timeout_ms=timeout_ms)]
    else:
        topics = sorted({tp.topic for tp in named})
    there: list[TopicPartition] = []
    errors: dict[TopicPartition, KafkaError] = {}
    for name, outcome in (await of_topics.describe_topics(self, topics, timeout_ms=timeout_ms)).items():
        if named is None and isinstance(outcome, UnknownTopicOrPartition):
            # Deleted since it was listed.
            continue
        for one in good(outcome).partitions:
            tp = TopicPartition(name, one.partition)
            if (named is not None and tp not in named) or (broker is not None and broker not in one.replicas):
                continue
            if one.leader < 0:
                errors[tp] = LeaderNotAvailable(f"{tp} has no leader")
            else:
                there.append(tp)
    for tp in (named or set()).difference(there, errors) if broker is None else ():
        errors[tp] = UnknownTopicOrPartition(f"{tp} does not exist")
    return sorted(there), errors


def _described(one: DescribedState, where: Node) -> t.TransactionDescription:
    return t.TransactionDescription(
        one.transactional_id,
        where,
        t.TransactionState(one.transaction_state),
        one.producer_id,
        one.producer_epoch,
        one.transaction_timeout_ms,
        one.transaction_start_time_ms if one.transaction_start_time_ms >= 0 else None,
        sorted(TopicPartition(topic.topic, number) for topic in one.topics for number in topic.partitions),
        one.client_id or None,
        one.client_host or None,
    )


def _open(tp: TopicPartition, producers: Iterable[ActiveProducer]) -> list[t.OpenTransaction]:
    found = [
        t.OpenTransaction(
            tp.topic,
            tp.partition,
            one.transaction_start_offset,
            one.producer_id,
            one.producer_epoch,
            one.coordinator_epoch,
            one.last_timestamp,
        )
        for one in producers
        if one.transaction_start_offset >= 0
    ]
    return sorted(found, key=lambda one: one.start_offset)
