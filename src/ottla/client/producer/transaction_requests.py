"""Requests to a transaction's coordinators, with retries; and the end of a transaction that another process wrote.

A request is sent again until its coordinator answers without a retriable error: while the coordinator moves, loads, or completes the
transaction before (CONCURRENT_TRANSACTIONS). All of these requests may be repeated: the coordinator recognises one that it has processed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, Self

from ottla.base.acls import Operation
from ottla.client.access_errors import refused_access
from ottla.client.group.coordinator_lookup import NOT_COORDINATOR, Coordinators
from ottla.client.producer.transaction_state import fenced
from ottla.client.transport.backoff import Backoff
from ottla.client.transport.network import Network
from ottla.wire.errors import CoordinatorNotAvailable, KafkaError, NetworkError, RequestTimedOut, error_for
from ottla.wire.messages import EndTxnRequest, EndTxnResponse
from ottla.wire.messages.find_coordinator import TRANSACTION

CONCURRENT_TRANSACTIONS = 51
#: First wait after CONCURRENT_TRANSACTIONS: markers are written within milliseconds.
CONCURRENT_MS = 5
#: First version of EndTxn with an epoch for each transaction (KIP-890).
EPOCH_PER_TRANSACTION_SINCE = 5
#: `transaction.version` from which on brokers add partitions, and each transaction has its own epoch. Source: KIP-890.
IMPLICIT_SINCE = 2
_INFINITE = float("inf")
#: Errors after which the coordinator is looked up again.
_MOVED = (CoordinatorNotAvailable.code, NOT_COORDINATOR)


class PreparedTransaction(NamedTuple):
    """The identity of a transaction: with it, another process can end it. Its text form is `producer_id:epoch`."""

    producer_id: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.producer_id}:{self.epoch}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """From the text form. Raises: ValueError."""
        producer_id, colon, epoch = text.partition(":")
        if not (colon and producer_id.isdecimal() and epoch.isdecimal()):
            raise ValueError(f"a prepared transaction is written PRODUCER_ID:EPOCH, such as 4000:7, not {text!r}")
        return cls(int(producer_id), int(epoch))


class CoordinatorRequests:
    """Requests to the coordinators of one type: of transactions, or of groups."""

    def __init__(self, network: Network, key_type: int) -> None:
        self._network = network
        self._coordinators = Coordinators(network, key_type)
        #: The last retriable error, for callers that time out.
        self.last_error: KafkaError | None = None

    async def ask(
        self,
        key: str,
        request: type[Any],
        build: Callable[[int], Any],
        code_of: Callable[[Any], int],
        *,
        deadline_ms: float = _INFINITE,
        at_least: int = 0,
        at_most: int = 1000,
        wanted: Callable[[], bool] = lambda: True,
    ) -> Any:
        """The response without an error, or with one that is not retriable for a part of it: `code_of` returns 0 then.

        `wanted` is asked before each repetition; the last error is raised when it is not. Raises: KafkaError; RequestTimedOut.
        """
        network, options = self._network, self._network.options
        backoff = Backoff(options.retry_backoff_ms, options.retry_backoff_max_ms, network.rng)
        concurrent = Backoff(min(CONCURRENT_MS, options.retry_backoff_ms), options.retry_backoff_ms, network.rng)
        while True:
            error = await self._ask_once(key, request, build, code_of, at_least, at_most)
            if not isinstance(error, KafkaError):
                self.last_error = None
                return error
            if not error.retriable or not wanted():
                raise fenced(error)
            self.last_error = error
            left_ms = deadline_ms - network.clock_ms()
            if left_ms <= 0:
                raise RequestTimedOut(f"{request.__name__.removesuffix('Request')} for {key!r} had no success in time: {error}")
            pause = concurrent if error.code == CONCURRENT_TRANSACTIONS else backoff
            await asyncio.sleep(min(pause.failed(), left_ms) / 1000)

    async def _ask_once(
        self, key: str, request: type[Any], build: Callable[[int], Any], code_of: Callable[[Any], int], at_least: int, at_most: int
    ) -> Any:
        """The response, or the error."""
        try:
            node = (await self._coordinators.find([key]))[key]
            if isinstance(node, KafkaError):
                return node
            response = await self._network.ask_as(node, request, build, at_least=at_least, at_most=at_most)
        except (NetworkError, RequestTimedOut) as error:
            self._coordinators.forget(key)
            return error
        code = code_of(response)
        if code in _MOVED:
            self._coordinators.forget(key)
        if not code:
            return response
        refused = refused_access(code, self._network.options, Operation.WRITE, key)
        return error_for(code, f"the coordinator of {key!r}: {refused or error_for(code)}")


def error_code(response: Any) -> int:
    """The code of a response with one."""
    return int(response.error_code)


def adds_implicitly(network: Network) -> bool:
    """Whether the cluster works with transaction.version 2 or later, as far as its brokers said."""
    return network.features.get("transaction.version", 0) >= IMPLICIT_SINCE


async def end_transaction(
    network: Network, transactional_id: str, producer_id: int, epoch: int, *, commit: bool, timeout_ms: float = 60_000
) -> PreparedTransaction:
    """Ends a transaction that another process wrote, and returns the identity of the next one.

    The producer id and epoch are those with which its records were written, or the ones that `init_transactions(keep_prepared=True)`
    returned since. A repeated call with the same outcome succeeds, also after another process has made it, until the next transaction of
    this transactional id begins. It does not wait for the markers.

    Raises: ProducerFenced if a newer producer of the transactional id was initialized; InvalidTxnState if the transaction has the other
    outcome, or no records; InvalidProducerIdMapping if the transactional id expired; RequestTimedOut.
    """
    # The features are those of the first connection.
    if network.cluster.version == 0:
        await network.refresh()
    implicit = adds_implicitly(network)
    request = EndTxnRequest(transactional_id=transactional_id, producer_id=producer_id, producer_epoch=epoch, committed=commit)
    response: EndTxnResponse = await CoordinatorRequests(network, TRANSACTION).ask(
        transactional_id,
        EndTxnRequest,
        lambda version: request,
        error_code,
        deadline_ms=network.clock_ms() + timeout_ms,
        at_least=EPOCH_PER_TRANSACTION_SINCE if implicit else 0,
        at_most=1000 if implicit else EPOCH_PER_TRANSACTION_SINCE - 1,
    )
    if response.producer_id < 0:
        return PreparedTransaction(producer_id, epoch)
    return PreparedTransaction(response.producer_id, response.producer_epoch)
