"""ListTransactions, key 66: the transactional ids that a broker coordinates (KIP-664).

| version | what is new |
|-|-|
| 1 | a filter by duration (KIP-994) |
| 2 | a filter by a pattern of transactional ids (KIP-1152) |

DescribeTransactions has another `TransactionState`: import both from their modules.
"""

from __future__ import annotations

from typing import Annotated

from ottla.wire.declare import Int16, Int32, Int64, Since, Struct, message

__all__ = ["ListTransactionsRequest", "ListTransactionsResponse"]


@message(key=66, since=0, until=2, flexible_since=0)
class ListTransactionsRequest(Struct):
    """An empty filter, a negative duration (ms), and a pattern that is null or empty let all pass. The pattern is a regular expression."""

    state_filters: list[str] = []
    producer_id_filters: list[Int64] = []
    duration_filter: Annotated[Int64, Since(1)] = -1
    transactional_id_pattern: Annotated[str | None, Since(2)] = None


class TransactionState(Struct):
    """One transactional id."""

    transactional_id: str = ""
    producer_id: Int64 = 0
    transaction_state: str = ""


@message(key=66, since=0, until=2, flexible_since=0)
class ListTransactionsResponse(Struct):
    """The ids that pass all filters, and the names of states that do not exist."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    unknown_state_filters: list[str] = []
    transaction_states: list[TransactionState] = []
