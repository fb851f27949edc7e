"""InitProducerId: a producer id and epoch, for an idempotent or a transactional producer.

Behaviour: without a transactional id every request gets a new id with epoch 0, whatever id and epoch it sends; sending only one of the two
is INVALID_REQUEST, and so is an empty transactional id. With a transactional id the producer gets the next epoch of that id, so that every
earlier producer of the id is fenced. An open transaction is aborted first; the answer is CONCURRENT_TRANSACTIONS meanwhile. A producer that
names its id and epoch continues (KIP-360); if these are not the present ones, it gets PRODUCER_FENCED. The request waits while the store
allocates the next block of ids.

Versions: below 4 PRODUCER_FENCED is INVALID_PRODUCER_EPOCH. 6 is served with transaction.two.phase.commit.enable: transactions of two-phase
commit have no timeout; with keepPreparedTxn an open transaction is kept, the producer gets a second identity to end it with, and the
response names the first (KIP-939). Source: KIP-98, KIP-360, KIP-588, KIP-890, KIP-939.
"""

from ottla.base.ids import NO_PRODUCER
from ottla.broker.apis.transaction_requests import INIT_FENCED_SINCE, check_id, code_for
from ottla.broker.delayed import DelayedOperation
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import PENDING, Deferred, handles
from ottla.broker.node import Node
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.broker.transactions.producer_ids import WAITING
from ottla.broker.transactions.transaction import Initialization, ProducerIdentity
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

#: Timeout of the store; the client then gets COORDINATOR_LOAD_IN_PROGRESS and retries.
BLOCK_WAIT_MS = 10_000
NO_PRODUCER_EPOCH = -1
_PARTS = REQUIREMENTS[22].parts
TRANSACTIONAL_ID, TWO_PHASE, IDEMPOTENT = (_PARTS[part] for part in ("transactional id", "two-phase commit", "idempotent producer"))


def refuse(call: RequestArrived[InitProducerIdRequest], error: KafkaError) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code_for(error, call.api_version, INIT_FENCED_SINCE), producer_epoch=NO_PRODUCER_EPOCH)


@handles(InitProducerIdRequest, (0, 6), refuse=refuse, serves_last=lambda options: options.transaction_two_phase_commit_enable)
def init_producer_id(node: Node, call: RequestArrived[InitProducerIdRequest]) -> InitProducerIdResponse | Deferred:
    request = call.body
    if request.transactional_id is None:
        node.context.demand(call, IDEMPOTENT)
    else:
        node.context.demand(call, TRANSACTIONAL_ID, request.transactional_id)
        if request.enable2_pc:
            node.context.demand(call, TWO_PHASE, request.transactional_id)
    if (request.producer_id == NO_PRODUCER) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        raise errors.InvalidRequest("a producer names both its id and its epoch, or neither")
    if request.transactional_id is not None:
        check_id(request.transactional_id)
        max_ms = node.context.options.transaction_max_timeout_ms
        if not request.enable2_pc and not 0 < request.transaction_timeout_ms <= max_ms:
            raise errors.InvalidTransactionTimeout(
                f"transaction.timeout.ms is {request.transaction_timeout_ms}; 1 to {max_ms} are allowed (transaction.max.timeout.ms)"
            )
        node.transactions.shard_of(request.transactional_id)
    if node.producer_ids.ready:
        return _initialized(node, call)
    return _wait(node, call)


def _initialized(node: Node, call: RequestArrived[InitProducerIdRequest]) -> InitProducerIdResponse | Deferred:
    """The response, if there is a producer id to allocate. Raises: KafkaError."""
    request = call.body
    if request.transactional_id is None:
        producer_id = node.producer_ids.take()
        if producer_id is None:
            raise errors.CoordinatorLoadInProgress("the store has not handed out producer ids yet")
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
    shard = node.transactions.shard_of(request.transactional_id)
    expected = None if request.producer_id == NO_PRODUCER else ProducerIdentity(request.producer_id, request.producer_epoch)
    asked = Initialization(request.transaction_timeout_ms, expected, request.enable2_pc, request.keep_prepared_txn)
    after = shard.machine.initialize(request.transactional_id, asked)
    if after.state.decided:
        aborting = errors.ConcurrentTransactions(f"the open transaction of {request.transactional_id!r} is being aborted; try again")
        return shard.answer(call, refuse(call, aborting), of=request.transactional_id)
    shard.machine.note_client(request.transactional_id, call.client_id, call.origin.host)
    response = InitProducerIdResponse(producer_id=after.held.producer_id, producer_epoch=after.held.epoch)
    if after.recovered:
        response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch = after.identity
    return shard.answer(call, response, of=request.transactional_id)


def _wait(node: Node, call: RequestArrived[InitProducerIdRequest]) -> Deferred:
    """Waits until there are producer ids."""
    # Starts to allocate a block.
    node.producer_ids.claim()

    def finish(expired: bool) -> None:
        node.context.cancel_delayed(call)
        try:
            answer = _initialized(node, call)
        except KafkaError as error:
            answer = refuse(call, error)
        if answer is not PENDING:
            node.context.answer(call, answer)

    operation = DelayedOperation("producer id", finish, keys=(WAITING,), ready=lambda: node.producer_ids.ready)
    return node.context.delay(call, operation, node.context.now_ms + BLOCK_WAIT_MS)
