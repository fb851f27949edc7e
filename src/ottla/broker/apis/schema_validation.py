"""Validates the schemas that batches name, before they are appended (``ottla.value.schema.validation``, ``ottla.key.schema.validation``).

A key or value begins with the frame of a schema registry: a zero byte and the schema's id in four bytes. The schema must be registered
under TOPIC-key or TOPIC-value (TopicNameStrategy). Null keys and values pass. The content is not compared with the schema.

=====================================  ====================================================================================
a record without a frame               INVALID_RECORD, which names the record
a schema that is not registered        INVALID_RECORD, which names the first record with each such schema
more than ``SCHEMAS_MAX`` schemas      INVALID_RECORD: an honest producer has a few
the registry does not answer           NOT_ENOUGH_REPLICAS: each producer tries again, and knows that nothing was written
=====================================  ====================================================================================

A batch is refused whole, before a transaction or the sequences of its producer are looked at. A request with unknown schemas waits for the
registry; later ones of its connection wait behind it, so that the batches of a producer keep their order.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ottla.base.ids import TopicPartition
from ottla.broker.delayed import DelayedOperation
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import NO_RESPONSE, PENDING, refused
from ottla.broker.node import Node
from ottla.broker.replica.leader import Leader
from ottla.broker.schema_registry import LOOKED_UP, Schema, SchemaRegistry, WaitingBatches
from ottla.records.errors import InvalidBatch
from ottla.records.validation import SchemaFrames
from ottla.wire import errors
from ottla.wire.errors import KafkaError

#: Schemas that the keys, or the values, of a batch may name.
SCHEMAS_MAX = 100

#: Errors of batches, by partition.
Refused = Mapping[TopicPartition, KafkaError]


class Framed(NamedTuple):
    """A batch whose records have frames, and by schema the index of the first record that names it."""

    partition: TopicPartition
    schemas: Mapping[Schema, int]


def when_schemas_known(
    node: Node,
    call: RequestArrived[Any],
    batches: Iterable[tuple[Leader, memoryview]],
    *,
    keep: Callable[[], None],
    then: Callable[[Refused], Any],
) -> Any:
    """The result of ``then(errors of batches)``, at once or when the registry has answered.

    ``batches``: of topics with validation; ``keep``: copies the request's buffers before it waits.
    """
    wrong: dict[TopicPartition, KafkaError] = {}
    framed: list[Framed] = []
    for leader, records in batches:
        try:
            framed.append(_framed(leader, records))
        except KafkaError as error:
            wrong[leader.partition] = error
    schemas = node.schemas
    schemas.ask(schema for batch in framed for schema in batch.schemas if schemas.registered(schema) is None)
    asked = {schema for batch in framed for schema in batch.schemas if schemas.is_asked(schema)}
    ahead = schemas.waiting.get(call.connection)
    if ahead is not None and ahead.operation.done:
        ahead = None
    if not asked and ahead is None:
        return then(_refused(schemas, framed, wrong))
    keep()
    return _wait(node, call, ahead, asked, lambda: then(_refused(schemas, framed, wrong)))


def _framed(leader: Leader, records: memoryview) -> Framed:
    """Raises: KafkaError if the batch is unreadable, or a record without a frame."""
    topic, frames = leader.partition.topic, leader.schema_frames(records, limit=SCHEMAS_MAX)
    faults: list[tuple[int, str]] = []
    schemas: dict[Schema, int] = {}
    for side, ids, unframed in _sides(frames):
        if unframed >= 0:
            faults.append((unframed, f"the {side} of record {unframed} does not begin with a zero byte and the id of a schema"))
        elif len(ids) > SCHEMAS_MAX:
            faults.append((max(ids.values()), f"a batch names at most {SCHEMAS_MAX} schemas in its {side}s"))
        schemas |= {(f"{topic}-{side}", number): index for number, index in ids.items()}
    if faults:
        raise _invalid(leader.partition, faults)
    return Framed(leader.partition, schemas)


def _sides(frames: SchemaFrames) -> tuple[tuple[str, dict[int, int], int], ...]:
    return ("key", frames.of_keys, frames.unframed_key), ("value", frames.of_values, frames.unframed_value)


def _refused(schemas: SchemaRegistry, framed: Iterable[Framed], wrong: Refused) -> dict[TopicPartition, KafkaError]:
    """``wrong``, and the errors of batches with schemas that are not registered or could not be asked about."""
    found = dict(wrong)
    for batch in framed:
        known = {schema: schemas.registered(schema) for schema in batch.schemas}
        faults = [
            (batch.schemas[schema], f"the schema registry has no schema {schema[1]} under the subject {schema[0]}")
            for schema, registered in known.items()
            if registered is False
        ]
        if faults:
            found[batch.partition] = _invalid(batch.partition, faults)
        elif None in known.values():
            reason = schemas.outage or "too many schemas are asked about"
            found[batch.partition] = errors.NotEnoughReplicas(
                f"the schemas of records of {batch.partition} could not be validated, try again: {reason}"
            )
    schemas.refused_batches += len(found)
    return found


def _invalid(partition: TopicPartition, faults: list[tuple[int, str]]) -> KafkaError:
    faults.sort()
    reason = f"record {faults[0][0]} of the batch for {partition} names no valid schema: {faults[0][1]}"
    error = errors.InvalidRecord(reason)
    error.__cause__ = InvalidBatch(reason, faults)
    return error


def _wait(node: Node, call: RequestArrived[Any], ahead: WaitingBatches | None, asked: Iterable[Schema], then: Callable[[], Any]) -> Any:
    context, waiting = node.context, node.schemas.waiting

    def finish(expired: bool) -> None:
        if waiting.get(call.connection) is batches:
            del waiting[call.connection]
        batches.ahead = None
        context.cancel_delayed(call)
        try:
            answer = then()
        except KafkaError as error:
            answer = refused(call, error)
        if answer is NO_RESPONSE:
            context.release(call)
        elif answer is not PENDING:
            context.respond(call, answer)

    operation = DelayedOperation("validation of schemas", finish, keys=[LOOKED_UP], ready=lambda: batches.ready(node.schemas))
    batches = waiting[call.connection] = WaitingBatches(ahead, asked, operation)
    return context.delay(call, operation, context.now_ms + context.options.schema_registry_timeout_ms)
