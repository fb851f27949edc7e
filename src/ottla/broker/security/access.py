"""Checks requests against the access rules. A broker without ``authorizer.class.name`` has none of this: every client may do everything.

Requirements come from ``requirements.py``, decisions from ``authorizer.py``. Each decision can become an ``Audit`` effect, as in Kafka's
authorizer log: a refusal always, unless it only selects what is answered; a permission if ``ottla.audit.allowed`` is set.

A request of a broker in the same process may do everything. Brokers of other processes need ClusterAction on the cluster, and those that
create topics of coordinators also Create, for the principal of their connection; usually it is a super user, as in Kafka.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from ottla.base.acls import CLUSTER_NAME, OPERATIONS, Operation, Pattern, ResourceType
from ottla.base.origin import SAME_PROCESS, Origin
from ottla.base.units import MINUTE_MS
from ottla.broker import effects
from ottla.broker.events import RequestArrived
from ottla.broker.metadata.image import Image
from ottla.broker.security.authorizer import SAME_PROCESS as OF_SAME_PROCESS
from ottla.broker.security.authorizer import AccessDecision, Authorizer
from ottla.broker.security.requirements import CLUSTER, REQUIREMENTS, Requirement
from ottla.wire.errors import KafkaError

#: Principals whose refused accesses are counted, per minute; further ones are counted together.
PRINCIPALS_MAX, OTHERS = 100, "others"
_SAME_PROCESS = AccessDecision(True, OF_SAME_PROCESS)


class AccessOptions(Protocol):
    """The settings that this module uses."""

    authorizer_class_name: str
    super_users: str
    allow_everyone_if_no_acl_found: bool
    audit_allowed: bool


class Requests(Protocol):
    """What this module uses of the broker's context."""

    effects: list[effects.Effect]
    image: Image
    options: Any
    now_ms: int


def super_users(text: str) -> list[str]:
    """The principals of ``super.users``, separated by semicolons because names in certificates contain commas."""
    return [part.strip() for part in text.split(";") if part.strip()]


def configured(options: AccessOptions) -> Authorizer | None:
    """The authorizer that the settings ask for."""
    if not options.authorizer_class_name.strip():
        return None
    return Authorizer(super_users(options.super_users), allow_without_rules=options.allow_everyone_if_no_acl_found)


class Access:
    """The checks of one broker with an authorizer."""

    def __init__(self, context: Requests, authorizer: Authorizer) -> None:
        self._context = context
        self.authorizer = authorizer
        #: Grows with each change of a rule: what was decided before may be wrong.
        self.changes = 0
        #: Refused accesses by minute of the broker's clock, of the last hour, and by principal.
        self._denied: dict[int, Counter[str]] = {}

    def changed(self, pattern: Pattern) -> None:
        """Rules of a pattern changed in the image."""
        self.changes += 1
        self.authorizer.change(pattern, self._context.image.acls.get(pattern, ()))

    def check(self, call: RequestArrived[Any]) -> None:
        """Checks what the whole request requires. Raises: the error of the resource that is refused."""
        for required in REQUIREMENTS[call.api_key].request:
            if call.api_version >= required.since:
                assert required.name is not None, "a requirement of the request names its resource"
                self.demand(call, required, required.name(call.body))

    def demand(self, call: RequestArrived[Any], required: Requirement, name: str = CLUSTER_NAME) -> None:
        """Raises: the error of the resource unless the client may carry out the operation on it."""
        if not self.permits(call, required, name):
            raise self.refusal(call, required, name)

    def refusal(self, call: RequestArrived[Any], required: Requirement, name: str = CLUSTER_NAME) -> KafkaError:
        """The error that refuses a resource."""
        last = required.alternatives[-1] if required.alternatives and not required.alternatives[-1].any_resource else required
        what = f"{last.resource_type.label} {name}" if last.resource_type is not CLUSTER else "the cluster"
        return last.error(f"{call.origin.principal} may not {last.operation.label} {what} from {call.origin.host}")

    def permits(self, call: RequestArrived[Any], required: Requirement, name: str = CLUSTER_NAME, *, times: int = 1) -> bool:
        """Whether the client may carry out the operation. ``times``: how often the request names the resource."""
        return self._permits(call, call.origin, required, name, times)

    def _permits(self, call: RequestArrived[Any], origin: Origin, required: Requirement, name: str, times: int) -> bool:
        resource = CLUSTER_NAME if required.resource_type is CLUSTER else name
        if origin == SAME_PROCESS:
            found = _SAME_PROCESS
        elif required.any_resource:
            found = self.authorizer.decide_any(origin.principal, origin.host, required.operation, required.resource_type)
        else:
            found = self.authorizer.decide(origin.principal, origin.host, required.operation, required.resource_type, resource)
        if found.allowed:
            if self._context.options.audit_allowed:
                self._audit(call, required, resource, found, times)
            return True
        if required.audits_denied:
            self._audit(call, required, resource, found, times)
        return any(self._permits(call, origin, other, name, times) for other in required.alternatives)

    def refusals(self, call: RequestArrived[Any], required: Requirement, names: Iterable[str]) -> dict[str, KafkaError]:
        """The errors of the names that the client may not use; each name is checked once."""
        times: dict[str, int] = {}
        for name in names:
            times[name] = times.get(name, 0) + 1
        refused = (name for name, count in times.items() if not self.permits(call, required, name, times=count))
        return {name: self.refusal(call, required, name) for name in refused}

    def operations(self, call: RequestArrived[Any], resource_type: ResourceType, name: str = CLUSTER_NAME) -> int:
        """The authorized operations of a client on a resource, as a bit field."""
        origin = call.origin
        if origin == SAME_PROCESS:
            return bits(OPERATIONS[resource_type])
        decide = self.authorizer.decide
        return bits(each for each in OPERATIONS[resource_type] if decide(origin.principal, origin.host, each, resource_type, name).allowed)

    def filter_of(self, call: RequestArrived[Any], required: Requirement) -> Callable[[str], bool]:
        """Whether the client may use a resource, by its name; for uses after the request, without audit."""
        origin, decide = call.origin, self.authorizer.decide
        operation, resource_type = required.operation, required.resource_type
        return lambda name: origin == SAME_PROCESS or decide(origin.principal, origin.host, operation, resource_type, name).allowed

    def acts_for_cluster(self, origin: Origin) -> bool:
        """Whether a sender has ClusterAction, as brokers have; without audit."""
        if origin == SAME_PROCESS:
            return True
        return self.authorizer.decide(origin.principal, origin.host, Operation.CLUSTER_ACTION, CLUSTER, CLUSTER_NAME).allowed

    def _count_denied(self, principal: str) -> None:
        minute = self._context.now_ms // MINUTE_MS
        if minute not in self._denied:
            self.denied_last_hour()
            self._denied[minute] = Counter()
        counts = self._denied[minute]
        counts[principal if principal in counts or len(counts) < PRINCIPALS_MAX else OTHERS] += 1

    def denied_last_hour(self) -> Counter[str]:
        """Refused accesses of the last 60 minutes by principal, without refusals that only select what is answered."""
        first = self._context.now_ms // MINUTE_MS - 59
        self._denied = {minute: counts for minute, counts in self._denied.items() if minute >= first}
        return sum(self._denied.values(), Counter())

    def _audit(self, call: RequestArrived[Any], required: Requirement, name: str, found: AccessDecision, times: int) -> None:
        if not found.allowed:
            self._count_denied(call.origin.principal)
        self._context.effects.append(
            effects.Audit(
                call=call,
                allowed=found.allowed,
                operation=required.operation,
                resource_type=required.resource_type,
                name="" if required.any_resource else name,
                rule=found.reason,
                times=times,
            )
        )


class Permits:
    """Whether the client of a request may use resources, by name, while the request waits. Each is checked once, and again when rules
    change.
    """

    __slots__ = ("_access", "_call", "_changes", "_known", "_required")

    def __init__(self, access: Access, call: RequestArrived[Any], required: Requirement) -> None:
        self._access, self._call, self._required = access, call, required
        self._changes = access.changes
        self._known: dict[str, bool] = {}

    def __call__(self, name: str) -> bool:
        if self._stale():
            self._changes = self._access.changes
            self._known.clear()
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = self._access.permits(self._call, self._required, name)
        return found

    def _stale(self) -> bool:
        """Whether rules changed since the last check."""
        return self._changes != self._access.changes

    def refusal(self, name: str) -> KafkaError:
        """The error that refuses a resource."""
        return self._access.refusal(self._call, self._required, name)


def bits(operations: Iterable[Operation]) -> int:
    """Bit n is the operation with code n. Source: KIP-430."""
    return sum(1 << operation for operation in operations)
