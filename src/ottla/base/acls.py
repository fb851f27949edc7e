"""Access rules (ACLs) in Kafka's terms: who may, or may not, do what, on which resources, from which host.

A rule is a pattern, which names resources, and an entry::

    pattern   Topic  LITERAL   orders          the topic orders
              Topic  LITERAL   *               every topic
              Topic  PREFIXED  orders-         every topic whose name begins with orders-
    entry     User:alice  from 10.0.0.7  Read  Allow

The numbers are those of the protocol; ``label`` gives the names of the store and of tools. 0 is no member: it is an unknown value.
Source: KIP-11, KIP-290; Kafka's AclOperation, ResourceType, PatternType, AclPermissionType.
"""

from collections.abc import Iterable
from enum import IntEnum
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple, Self

#: Any resource of a type, as the name of a literal pattern; any host; any user.
WILDCARD = "*"
ANY_USER = "User:*"
#: The value of an authorized-operations field that was not requested.
NOT_REQUESTED = -(2**31)
#: The only name of a resource of type CLUSTER.
CLUSTER_NAME = "kafka-cluster"


class _Labelled(IntEnum):
    #: Enum's own hash is a call of Python code; these are parts of keys that are looked up for every check.
    __hash__ = int.__hash__

    @property
    def label(self) -> str:
        """Kafka's name in the store and in tools: ``TransactionalId``."""
        return "".join(part.capitalize() for part in self.name.split("_"))

    @classmethod
    def labelled(cls, text: str) -> Self | None:
        """The member with this label in any case, with or without underscores or dashes; None if there is none."""
        plain = text.replace("_", "").replace("-", "").lower()
        return next((member for member in cls if member.name.replace("_", "").lower() == plain), None)


class ResourceType(_Labelled):
    """ANY only in filters."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Labelled):
    """ANY and MATCH only in filters: MATCH finds every pattern that applies to a resource of the filter's name."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(_Labelled):
    """ANY only in filters; ALL only in rules: every operation."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15

    @classmethod
    def of_bits(cls, bits: int) -> "frozenset[Operation] | None":
        """The operations of an authorized-operations field, in which bit n is code n; None if not requested. Source: KIP-430."""
        return None if bits == NOT_REQUESTED else frozenset(one for one in cls if one >= cls.READ and bits >> one & 1)


class Permission(_Labelled):
    """ANY only in filters."""

    ANY = 1
    DENY = 2
    ALLOW = 3


#: Types of resources, and of patterns, that rules have.
RESOURCE_TYPES = tuple(member for member in ResourceType if member is not ResourceType.ANY)
PATTERN_TYPES = (PatternType.LITERAL, PatternType.PREFIXED)

#: Operations that exist on a resource of each type, for authorized-operations fields and tools. Source: Kafka's AclEntry.
OPERATIONS: dict[ResourceType, tuple[Operation, ...]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}

#: Operations whose permission includes DESCRIBE, and DESCRIBE_CONFIGS. This applies to rules that allow only.
IMPLY: dict[Operation, frozenset[Operation]] = {
    Operation.DESCRIBE: frozenset((Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)),
    Operation.DESCRIBE_CONFIGS: frozenset((Operation.ALTER_CONFIGS,)),
}


class Pattern(NamedTuple):
    """Names the resources of rules."""

    resource_type: ResourceType
    pattern_type: PatternType
    name: str

    def __str__(self) -> str:
        return f"{self.resource_type.label}:{self.pattern_type.name}:{self.name}"


def covers(pattern: Pattern, name: str) -> bool:
    """Whether rules of a pattern apply to a resource of its type with this name."""
    if pattern.pattern_type is PatternType.PREFIXED:
        return name.startswith(pattern.name)
    return pattern.name in (name, WILDCARD)


@lru_cache(maxsize=1 << 14)
def canonical(host: str) -> str:
    """One text for each address: Java writes ``0:0:0:0:0:0:0:1`` for ``::1``, and IPv6 listeners map IPv4 addresses."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


class Entry(NamedTuple):
    """Who may, or may not, do what. ``host`` is an address as text, or ``*``."""

    principal: str
    host: str
    operation: Operation
    permission: Permission

    def __str__(self) -> str:
        return f"{self.permission.label} {self.principal} from {self.host} {self.operation.label}"


class Filter(NamedTuple):
    """Selects rules; None, ANY: no condition."""

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches_pattern(self, pattern: Pattern) -> bool:
        """Whether rules of a pattern are selected. Source: Kafka's ResourcePatternFilter."""
        if self.resource_type not in (ResourceType.ANY, pattern.resource_type):
            return False
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, pattern.pattern_type):
            return False
        if self.name is None:
            return True
        if self.pattern_type is not PatternType.MATCH:
            return self.name == pattern.name
        return covers(pattern, self.name)

    def matches_entry(self, entry: Entry) -> bool:
        """Whether an entry of a selected pattern is selected."""
        return (
            (self.principal is None or self.principal == entry.principal)
            and (self.host is None or self.host == entry.host)
            and self.operation in (Operation.ANY, entry.operation)
            and self.permission in (Permission.ANY, entry.permission)
        )


def deciding_rule(
    rules: Iterable[tuple[Pattern, Entry]], principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str
) -> tuple[bool | None, tuple[Pattern, Entry] | None]:
    """Whether rules allow an operation on a resource, and the rule that decides; None: none decides, and none is about the resource.

    Looks at every rule. Brokers decide the same by an index (``broker/security/authorizer.py``).
    """
    about = [(pattern, entry) for pattern, entry in rules if pattern.resource_type is resource_type and covers(pattern, name)]
    allowing, address = None, canonical(host)
    for pattern, entry in about:
        if entry.principal not in (principal, ANY_USER) or (entry.host != WILDCARD and canonical(entry.host) != address):
            continue
        same = entry.operation in (operation, Operation.ALL)
        if entry.permission is Permission.DENY and same:
            return False, (pattern, entry)
        if allowing is None and entry.permission is Permission.ALLOW and (same or entry.operation in IMPLY.get(operation, ())):
            allowing = pattern, entry
    return (True if allowing is not None else False if about else None), allowing
