"""AddOffsetsToTxn, key 25: adds the offsets of a group to a transaction, before TxnOffsetCommit.

| version | change |
|-|-|
| 2 | PRODUCER_FENCED may be answered |
| 3 | flexible |
| 4 | TRANSACTION_ABORTABLE may be answered (KIP-890) |

Source: KIP-98.
"""

from ottla.wire.declare import Int16, Int32, Int64, Struct, message


@message(key=25, since=0, until=4, flexible_since=3)
class AddOffsetsToTxnRequest(Struct):
    """Sent to the transaction coordinator."""

    transactional_id: str = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    group_id: str = ""


@message(key=25, since=0, until=4, flexible_since=3)
class AddOffsetsToTxnResponse(Struct):
    """The error, or 0."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
