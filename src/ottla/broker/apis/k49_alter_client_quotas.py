"""AlterClientQuotas: on the controller; sets and removes quotas of users, client ids, both, and addresses.

Each entity succeeds or fails alone; the quotas of one are one store node, written as a whole with its version. A quota must be above 0, and
byte rates and connection rates are whole numbers. To remove a quota that is not set, or does not exist, is no error. Other keys of a
user's node, such as credentials, stay.

Differences from Kafka: an entity that is named twice is not changed at all. A host name of an ip is resolved when brokers apply the quota,
not when it is set. Like other settings, quotas count against ottla.config.max.bytes. Source: KIP-546, KIP-612.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

from ottla.base.ports import Op
from ottla.broker.apis.store_writes import Writes, note
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles
from ottla.broker.metadata.image import Image, entry_bytes
from ottla.broker.node import Node
from ottla.broker.quotas.entities import checked_changes, entity_of
from ottla.broker.quotas.limits import Quota
from ottla.store import layout, layout_quotas
from ottla.store.layout_quotas import QuotaEntity
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse, EntityData, EntryResult

#: Timeout of the store: this request has none.
ANSWER_MS = 30_000
Changes = Mapping[Quota, str | None]


def refuse(call: RequestArrived[AlterClientQuotasRequest], error: KafkaError) -> AlterClientQuotasResponse:
    entries = [EntryResult(error_code=error.code, error_message=str(error), entity=entry.entity) for entry in call.body.entries]
    return AlterClientQuotasResponse(entries=entries)


@handles(AlterClientQuotasRequest, (0, 1), refuse=refuse, at_controller=True)
def alter_client_quotas(node: Node, call: RequestArrived[AlterClientQuotasRequest]) -> AlterClientQuotasResponse | Deferred:
    request, image = call.body, node.context.image
    response = AlterClientQuotasResponse()
    writes = Writes(node, call)
    limit = node.context.options.config_max_bytes
    room = limit - image.configs_bytes
    times = Counter(_name(entry.entity) for entry in request.entries)
    answered: set[frozenset[tuple[str, str | None]]] = set()
    for entry in request.entries:
        name = _name(entry.entity)
        if name in answered:
            continue
        answered.add(name)
        result = EntryResult(error_message=None, entity=entry.entity)
        response.entries.append(result)
        try:
            if times[name] > 1:
                raise errors.InvalidRequest("the request names this entity more than once")
            entity = entity_of(entry.entity)
            changes = checked_changes(entity, entry.ops)
            ops = _plan(image, entity, changes)
            growth = sum(entry_bytes(op.path, op.data) for op in ops if op.kind != "delete") - _present_bytes(image, entity)
            if ops and growth > max(room, 0):
                raise errors.PolicyViolation(f"all settings in the store would exceed ottla.config.max.bytes, {limit}; delete some")
        except KafkaError as error:
            note(result, error)
            continue
        if ops and not request.validate_only:
            room -= growth
            writes.add(ops, partial(note, result), again=partial(_plan, image, entity, changes))
    return writes.answer_when_done(response, ANSWER_MS)


def _name(entity: Sequence[EntityData]) -> frozenset[tuple[str, str | None]]:
    return frozenset((part.entity_type, part.entity_name) for part in entity)


def _present_bytes(image: Image, entity: QuotaEntity) -> int:
    present = image.quotas.get(entity)
    return entry_bytes(layout_quotas.quota_config(entity), layout.encode_config(present)) if present else 0


def _plan(image: Image, entity: QuotaEntity, changes: Changes) -> list[Op]:
    """Operations for the change; none if nothing changes."""
    present = image.quotas.get(entity, {})
    texts = dict(present)
    for key, text in changes.items():
        if text is None:
            texts.pop(key, None)
        else:
            texts[str(key)] = text
    if texts == present:
        return []
    path, content = layout_quotas.quota_config(entity), layout.encode_config(texts)
    version = image.versions.get(path)
    if version is not None:
        # The node of a user with client ids below it stays.
        stays = texts or layout_quotas.quota_clients(path) in image.versions
        return [Op("set", path, content, version=version) if stays else Op("delete", path, version=version)]
    parents = []
    if entity.user is not None and entity.client is not None:
        user = layout_quotas.quota_config(QuotaEntity(user=entity.user))
        parents = [Op("create", parent, b"") for parent in (user, layout_quotas.quota_clients(user)) if parent not in image.versions]
    return [*parents, Op("create", path, content)]
