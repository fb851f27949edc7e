"""EndTxn, key 26: commit or abort a transaction.

| version | what is new |
|-|-|
| 2 | PRODUCER_FENCED may be answered |
| 3 | flexible |
| 4 | TRANSACTION_ABORTABLE may be answered (KIP-890) |
| 5 | each transaction raises the producer epoch; the response has the next id and epoch (KIP-890) |
"""

from __future__ import annotations

from typing import Annotated

from ottla.wire.declare import Ignorable, Int16, Int32, Int64, Since, Struct, message


@message(key=26, since=0, until=5, flexible_since=3)
class EndTxnRequest(Struct):
    """Sent to the transaction coordinator; ``committed`` false aborts."""

    transactional_id: str = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    committed: bool = False


@message(key=26, since=0, until=5, flexible_since=3)
class EndTxnResponse(Struct):
    """The identity for the next transaction; -1 if it is unchanged."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Annotated[Int64, Since(5), Ignorable] = -1
    producer_epoch: Annotated[Int16, Since(5), Ignorable] = -1
