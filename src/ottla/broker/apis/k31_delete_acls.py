"""DeleteAcls: on the controller; deletes access rules that match filters.

Behaviour: each filter has its own result, with the rules that it matched; a filter that matches nothing succeeds. A rule that several
filters match is in the result of each, as with Kafka 4. The rules of a pattern are deleted together; a failure is the error of each of its
rules. Answered when the store and the controller's image no longer have the rules; other brokers apply it when their images do. Without
``authorizer.class.name`` every result is SECURITY_DISABLED.

Differences from Kafka: unknown values in a filter are INVALID_REQUEST; Kafka closes the connection. The patterns of one request are deleted
one after another, not atomically. Source: KIP-140, KIP-290.
"""

from ottla.base.acls import Entry, Filter, Pattern
from ottla.base.ports import Op
from ottla.broker.apis.acl_filters import filter_of
from ottla.broker.apis.store_writes import Writes, note
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles
from ottla.broker.node import Node
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)

#: The request has no timeout.
STORE_MS = 30_000

#: Filters of a request with their results.
Filters = list[tuple[Filter, DeleteAclsFilterResult]]


def refuse(call: RequestArrived[DeleteAclsRequest], error: KafkaError) -> DeleteAclsResponse:
    """The same error for each filter."""
    return DeleteAclsResponse(
        filter_results=[DeleteAclsFilterResult(error_code=error.code, error_message=str(error)) for _ in call.body.filters]
    )


@handles(DeleteAclsRequest, (1, 3), refuse=refuse, at_controller=True)
def delete_acls(node: Node, call: RequestArrived[DeleteAclsRequest]) -> DeleteAclsResponse | Deferred:
    if node.context.access is None:
        raise errors.SecurityDisabled("this broker has no access rules: authorizer.class.name is not set")
    response = DeleteAclsResponse(filter_results=[DeleteAclsFilterResult(error_message=None) for _ in call.body.filters])
    filters: Filters = []
    for asked, result in zip(call.body.filters, response.filter_results, strict=True):
        try:
            filters.append((filter_of(asked), result))
        except KafkaError as error:
            note(result, error)
    writes = Writes(node, call)
    for pattern in sorted(node.context.image.acls):
        concerned = [(wanted, result) for wanted, result in filters if wanted.matches_pattern(pattern)]
        if concerned:
            _delete(node, writes, pattern, concerned)
    return writes.answer_when_done(response, STORE_MS)


def _delete(node: Node, writes: Writes, pattern: Pattern, filters: Filters) -> None:
    """Deletes the matching rules of one pattern; after a conflict, those that match then."""
    image = node.context.image
    #: The rules of the last plan by filter.
    matched: list[list[DeleteAclsMatchingAcl]] = []

    def plan() -> list[Op]:
        entries = image.acls.get(pattern, ())
        matched[:] = [[_matching(pattern, entry) for entry in entries if wanted.matches_entry(entry)] for wanted, _ in filters]
        return node.controller.access_rules.rewritten(
            pattern, [entry for entry in entries if not any(wanted.matches_entry(entry) for wanted, _ in filters)]
        )

    def done(error: KafkaError | None) -> None:
        for (_, result), found in zip(filters, matched, strict=True):
            for one in found:
                note(one, error)
            result.matching_acls += found

    ops = plan()
    if ops:
        writes.add(ops, done, again=plan)


def _matching(pattern: Pattern, entry: Entry) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=pattern.resource_type,
        resource_name=pattern.name,
        pattern_type=pattern.pattern_type,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission,
    )
