"""DescribeClientQuotas: the quotas of the entities that match all conditions; any broker answers.

Behaviour: without conditions all entities match, or with ``strict`` none. An unknown type of entity is UNSUPPORTED_VERSION, a repeated one
INVALID_REQUEST. Credentials of users are not listed. Source: KIP-546, KIP-612.
"""

from ottla.broker.events import RequestArrived
from ottla.broker.handlers import handles
from ottla.broker.node import Node
from ottla.broker.quotas.entities import EntityFilter, parts_of
from ottla.broker.quotas.limits import values_of
from ottla.wire.errors import KafkaError
from ottla.wire.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntryData,
    ValueData,
)


def refuse(call: RequestArrived[DescribeClientQuotasRequest], error: KafkaError) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_code=error.code, error_message=str(error), entries=None)


@handles(DescribeClientQuotasRequest, (0, 1), refuse=refuse)
def describe_client_quotas(node: Node, call: RequestArrived[DescribeClientQuotasRequest]) -> DescribeClientQuotasResponse:
    wanted = EntityFilter.of(call.body)
    entries = []
    for entity, texts in node.context.image.quotas.items():
        if wanted.matches(entity) and (values := values_of(entity, texts)):
            data = [ValueData(key=str(key), value=value) for key, value in values.items()]
            entries.append(EntryData(entity=parts_of(entity), values=data))
    return DescribeClientQuotasResponse(error_message=None, entries=entries)
