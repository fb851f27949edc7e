"""InitProducerId, key 22: a producer id and epoch, for idempotence or for transactions.

| version | change |
|-|-|
| 2 | flexible |
| 3 | the producer says which id and epoch it has, to get the next epoch (KIP-360) |
| 4 | PRODUCER_FENCED may be answered |
| 5 | TRANSACTION_ABORTABLE may be answered (KIP-890) |
| 6 | two-phase commit (KIP-939); not final in Kafka 4.4, and advertised only with transaction.two.phase.commit.enable |
"""

from typing import Annotated

from ottla.wire.declare import Int16, Int32, Int64, Since, Struct, message


@message(key=22, since=0, until=6, stable_until=5, flexible_since=2)
class InitProducerIdRequest(Struct):
    """A null transactional id asks for idempotence alone."""

    transactional_id: str | None = ""
    transaction_timeout_ms: Int32 = 0
    producer_id: Annotated[Int64, Since(3)] = -1
    producer_epoch: Annotated[Int16, Since(3)] = -1
    enable2_pc: Annotated[bool, Since(6)] = False
    keep_prepared_txn: Annotated[bool, Since(6)] = False


@message(key=22, since=0, until=6, stable_until=5, flexible_since=2)
class InitProducerIdResponse(Struct):
    """The identity to produce with."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = 0
    ongoing_txn_producer_id: Annotated[Int64, Since(6)] = -1
    ongoing_txn_producer_epoch: Annotated[Int16, Since(6)] = -1
