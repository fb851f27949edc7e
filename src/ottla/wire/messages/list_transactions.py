"""ListTransactions, key 66: the transactional ids that this broker coordinates (KIP-664).

| version | change |
|-|-|
| 1 | a filter of durations (KIP-994) |
| 2 | a filter of transactional ids: a regular expression (KIP-1152) |

DescribeTransactions has another `TransactionState`: import it from its module.
"""

from typing import Annotated

from ottla.wire.declare import Int16, Int32, Int64, Since, Struct, message

__all__ = ["ListTransactionsRequest", "ListTransactionsResponse"]


@message(key=66, since=0, until=2, flexible_since=0)
class ListTransactionsRequest(Struct):
    """An empty filter, a negative duration and a null or empty pattern let all pass."""

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
    """The transactional ids that pass the filters, and the names of the filter that are no states."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    unknown_state_filters: list[str] = []
    transaction_states: list[TransactionState] = []
