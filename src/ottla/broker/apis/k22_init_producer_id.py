"""InitProducerId: a producer id for an idempotent producer.

Behaviour: without a transactional id every request gets a new id with epoch 0, whatever id and epoch it sends; sending only one of the two
is INVALID_REQUEST, and so is an empty transactional id. The request waits while the store allocates the next block of ids.

Differences from Kafka: a transactional id is refused with TRANSACTIONAL_ID_AUTHORIZATION_FAILED, because transactions are not supported
and this is the only error that all clients treat as final. Source: KIP-98, KIP-360.
"""

from ottla.base.ids import NO_PRODUCER
from ottla.broker.delayed import DelayedOperation
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles
from ottla.broker.node import Node
from ottla.broker.transactions.producer_ids import WAITING
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

#: Timeout of the store; the client then gets COORDINATOR_LOAD_IN_PROGRESS and retries.
BLOCK_WAIT_MS = 10_000
NO_PRODUCER_EPOCH = -1


def refuse(call: RequestArrived[InitProducerIdRequest], error: KafkaError) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error.code, producer_epoch=NO_PRODUCER_EPOCH)


@handles(InitProducerIdRequest, (0, 5), refuse=refuse)
def init_producer_id(node: Node, call: RequestArrived[InitProducerIdRequest]) -> InitProducerIdResponse | Deferred:
    request = call.body
    if (request.producer_id == NO_PRODUCER) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        raise errors.InvalidRequest("a producer names both its id and its epoch, or neither")
    if request.transactional_id == "":
        raise errors.InvalidRequest("a transactional id has at least one character")
    if request.transactional_id is not None:
        raise errors.TransactionalIdAuthorizationFailed("this broker serves no transactions")
    producer_id = node.producer_ids.take()
    if producer_id is not None:
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)

    def finish(expired: bool) -> None:
        late = node.producer_ids.take()
        if late is None:
            node.context.answer(call, refuse(call, errors.CoordinatorLoadInProgress("the store has not handed out producer ids yet")))
        else:
            node.context.answer(call, InitProducerIdResponse(producer_id=late, producer_epoch=0))

    operation = DelayedOperation("producer id", finish, keys=(WAITING,), ready=lambda: node.producer_ids.ready)
    return node.context.delay(call, operation, node.context.now_ms + BLOCK_WAIT_MS)
