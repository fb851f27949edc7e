"""EndTxn, key 26: commits or aborts a transaction.

| version | change |
|-|-|
| 2 | PRODUCER_FENCED may be answered |
| 3 | flexible |
| 4 | TRANSACTION_ABORTABLE may be answered (KIP-890) |
| 5 | each transaction has its own epoch; the response has the id and epoch of the next (KIP-890) |

Source: KIP-98, KIP-890.
"""

from typing import Annotated

from ottla.wire.declare import Ignorable, Int16, Int32, Int64, Since, Struct, message


@message(key=26, since=0, until=5, flexible_since=3)
class EndTxnRequest(Struct):
    """``committed`` is False to abort."""

    transactional_id: str = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    committed: bool = False


@message(key=26, since=0, until=5, flexible_since=3)
class EndTxnResponse(Struct):
    """The error, or 0; and the producer id and epoch of the next transaction, -1 in case of an error."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Annotated[Int64, Since(5), Ignorable] = -1
    producer_epoch: Annotated[Int16, Since(5), Ignorable] = -1
