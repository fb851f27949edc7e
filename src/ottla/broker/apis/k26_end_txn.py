"""EndTxn: commits or aborts a transaction.

Behaviour: answered when the decision is on the disks of all in-sync replicas of __transaction_state. The markers follow; until they are
written, the next request of the producer gets CONCURRENT_TRANSACTIONS. A repeated request is answered like the first; the other outcome is
INVALID_TXN_STATE, and so is a transaction without partitions.

Versions: below 2 PRODUCER_FENCED is INVALID_PRODUCER_EPOCH. From 5 on each transaction has its own epoch, the response has the identity of
the next one, and a transaction without partitions can be aborted (KIP-890).

Source: KIP-98, KIP-588, KIP-890.
"""

from ottla.broker.apis.transaction_requests import FENCED_SINCE, check_id, code_for
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import PENDING, Deferred, handles
from ottla.broker.node import Node
from ottla.broker.transactions.transaction import EPOCH_PER_TRANSACTION, ProducerIdentity
from ottla.wire.errors import KafkaError
from ottla.wire.messages.end_txn import EndTxnRequest, EndTxnResponse

#: First version whose client has the rules of ``transaction.version`` 2.
EPOCH_PER_TRANSACTION_SINCE = 5


def refuse(call: RequestArrived[EndTxnRequest], error: KafkaError) -> EndTxnResponse:
    return EndTxnResponse(error_code=code_for(error, call.api_version, FENCED_SINCE))


@handles(EndTxnRequest, (0, 5), refuse=refuse)
def end_txn(node: Node, call: RequestArrived[EndTxnRequest]) -> EndTxnResponse | Deferred:
    request = call.body
    transactional_id = check_id(request.transactional_id)
    shard = node.transactions.shard_of(transactional_id)
    version = EPOCH_PER_TRANSACTION if call.api_version >= EPOCH_PER_TRANSACTION_SINCE else 0
    identity = ProducerIdentity(request.producer_id, request.producer_epoch)
    after = shard.machine.end(transactional_id, identity, commit=request.committed, version=version)
    shard.machine.note_client(transactional_id, call.client_id, call.origin.host)
    producer_id, epoch = after.held
    answer = shard.answer(call, EndTxnResponse(producer_id=producer_id, producer_epoch=epoch), of=transactional_id)
    if answer is not PENDING:
        node.context.respond(call, answer)
    # After the response, which then does not wait until the markers of many partitions are prepared.
    shard.machine.go_on_with(after)
    return PENDING
