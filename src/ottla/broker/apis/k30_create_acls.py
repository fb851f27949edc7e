"""CreateAcls: on the controller; adds access rules.

Behaviour: each rule has its own result; one that exists already stays and succeeds. Rules of one pattern are written together. The only
cluster resource is ``kafka-cluster``. Answered when the store and the controller's image have the rules; other brokers apply them when
their images do. Without ``authorizer.class.name`` every result is SECURITY_DISABLED.

Differences from Kafka: an unknown type, operation or permission is INVALID_REQUEST; Kafka closes the connection. A principal has a type and
a name (INVALID_REQUEST); Kafka accepts others, which match nobody. Source: KIP-140, KIP-290.
"""

from collections.abc import Sequence

from ottla.base.acls import CLUSTER_NAME, Entry, Operation, Pattern, PatternType, Permission, ResourceType
from ottla.base.ports import Op
from ottla.broker.apis.store_writes import Writes, note
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles
from ottla.broker.node import Node
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.create_acls import AclCreation, AclCreationResult, CreateAclsRequest, CreateAclsResponse

#: The request has no timeout.
STORE_MS = 30_000


def refuse(call: RequestArrived[CreateAclsRequest], error: KafkaError) -> CreateAclsResponse:
    """The same error for each rule."""
    return CreateAclsResponse(results=[AclCreationResult(error_code=error.code, error_message=str(error)) for _ in call.body.creations])


@handles(CreateAclsRequest, (1, 3), refuse=refuse, at_controller=True)
def create_acls(node: Node, call: RequestArrived[CreateAclsRequest]) -> CreateAclsResponse | Deferred:
    if node.context.access is None:
        raise errors.SecurityDisabled("this broker has no access rules: authorizer.class.name is not set")
    response = CreateAclsResponse(results=[AclCreationResult(error_message=None) for _ in call.body.creations])
    added: dict[Pattern, list[tuple[Entry, AclCreationResult]]] = {}
    for asked, result in zip(call.body.creations, response.results, strict=True):
        try:
            pattern, entry = _rule(asked)
        except KafkaError as error:
            note(result, error)
        else:
            added.setdefault(pattern, []).append((entry, result))
    writes = Writes(node, call)
    for pattern, rules in added.items():
        _write(node, writes, pattern, rules)
    return writes.answer_when_done(response, STORE_MS)


def _write(node: Node, writes: Writes, pattern: Pattern, rules: Sequence[tuple[Entry, AclCreationResult]]) -> None:
    image = node.context.image

    def plan() -> list[Op]:
        return node.controller.access_rules.rewritten(pattern, (*image.acls.get(pattern, ()), *(entry for entry, _ in rules)))

    def done(error: KafkaError | None) -> None:
        for _, result in rules:
            note(result, error)

    ops = plan()
    if ops:
        writes.add(ops, done, again=plan)


def _rule(asked: AclCreation) -> tuple[Pattern, Entry]:
    """Raises: InvalidRequest."""
    try:
        pattern = Pattern(ResourceType(asked.resource_type), PatternType(asked.resource_pattern_type), asked.resource_name)
        entry = Entry(asked.principal, asked.host, Operation(asked.operation), Permission(asked.permission_type))
    except ValueError as error:
        raise errors.InvalidRequest(f"the access rule has an unknown value: {error}") from None
    if pattern.resource_type is ResourceType.ANY:
        raise errors.InvalidRequest("an access rule is about resources of one type, not ANY")
    if pattern.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise errors.InvalidRequest(f"an access rule has a pattern of type LITERAL or PREFIXED, not {pattern.pattern_type.name}")
    if entry.operation is Operation.ANY or entry.permission is Permission.ANY:
        raise errors.InvalidRequest("an access rule has one operation or ALL, and allows or denies it")
    if not pattern.name:
        raise errors.InvalidRequest("an access rule names a resource, a prefix or *")
    if pattern.resource_type is ResourceType.CLUSTER and pattern.name != CLUSTER_NAME:
        raise errors.InvalidRequest(f"the only resource of type CLUSTER is {CLUSTER_NAME}")
    kind, separator, name = entry.principal.partition(":")
    if not (kind and separator and name):
        raise errors.InvalidRequest(f"{entry.principal!r} is no principal; it has the form User:NAME")
    if not entry.host:
        raise errors.InvalidRequest("an access rule names a host or *")
    return pattern, entry
