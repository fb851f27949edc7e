"""Decides by access rules whether a principal may carry out an operation on a resource.

The semantics are those of Kafka's StandardAuthorizer::

    super user                                                    allowed
    a matching rule denies                                        denied
    a matching rule allows                                        allowed
    no rule of any principal is about the resource                allow.everyone.if.no.acl.found
    otherwise                                                     denied

A rule matches if its pattern covers the resource (the same name, ``*``, or a prefix), its principal is the client's or ``User:*``, its host
is the client's or ``*``, and its operation is the requested one or ALL. A rule that allows READ, WRITE, DELETE or ALTER also allows
DESCRIBE, and ALTER_CONFIGS allows DESCRIBE_CONFIGS. A rule that denies READ does not deny DESCRIBE.

Lookups are by name: a dictionary for literal patterns, and for prefixed ones a dictionary that is asked for each length that a prefix has.
Within a pattern, rules are found by principal. So the time of a check does not depend on the number of rules, but on the number of
different lengths of prefixes. Results are remembered until a rule changes.

Source: KIP-11, KIP-290, KIP-679 (any resource of a type); Kafka's StandardAuthorizerData and Authorizer.authorizeByResourceType.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple

from ottla.base.acls import ANY_USER, IMPLY, WILDCARD, Entry, Operation, Pattern, PatternType, Permission, ResourceType

#: ``authorizer.class.name``: Kafka's authorizer with ZooKeeper, its name before 2.4, and the one of Kafka 4. All mean the same here.
CLASSES = (
    "kafka.security.authorizer.AclAuthorizer",
    "kafka.security.auth.SimpleAclAuthorizer",
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
)
#: Results that are remembered; clients choose the names of resources, so there is a limit.
REMEMBERED = 100_000
#: Reasons of decisions without a rule.
SUPER_USER, NO_RULES, NO_MATCH, SAME_PROCESS = "super user", "no rules for the resource", "no matching rule", "broker of the same process"


@lru_cache(maxsize=1 << 14)
def canonical(host: str) -> str:
    """One text for each address: Java writes ``0:0:0:0:0:0:0:1`` for ``::1``, and IPv6 listeners map IPv4 addresses."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


class Decision(NamedTuple):
    """Whether the operation is allowed, and by what: a rule, or one of the reasons above."""

    allowed: bool
    rule: tuple[Pattern, Entry] | str

    @property
    def reason(self) -> str:
        """The rule as text."""
        return self.rule if isinstance(self.rule, str) else f"{self.rule[1]} on {self.rule[0]}"


#: Rules of one pattern by principal.
_Rules = dict[str, tuple[Entry, ...]]


class Authorizer:
    """The rules of the cluster, indexed."""

    def __init__(self, super_users: Iterable[str] = (), *, allow_without_rules: bool = False) -> None:
        self._super_users = frozenset(super_users)
        self._without_rules = Decision(allow_without_rules, NO_RULES)
        self._literal: dict[tuple[ResourceType, str], _Rules] = {}
        self._prefixed: dict[tuple[ResourceType, str], _Rules] = {}
        #: Number of prefixes by length, for each type; the lengths in ascending order.
        self._lengths: dict[ResourceType, Counter[int]] = {}
        self._ordered: dict[ResourceType, tuple[int, ...]] = {}
        #: Patterns with rules of a principal, for each type.
        self._patterns: dict[tuple[ResourceType, str], dict[Pattern, None]] = {}
        #: Results since the last change; at most REMEMBERED.
        self._known: dict[tuple[str, str, Operation, ResourceType, str], Decision] = {}
        self._known_of_any: dict[tuple[str, str, Operation, ResourceType], Decision] = {}

    def change(self, pattern: Pattern, entries: Iterable[Entry]) -> None:
        """Replaces the rules of a pattern."""
        self._known.clear()
        self._known_of_any.clear()
        table = self._literal if pattern.pattern_type is PatternType.LITERAL else self._prefixed
        key = pattern.resource_type, pattern.name
        before = table.pop(key, None)
        for principal in before or ():
            patterns = self._patterns[pattern.resource_type, principal]
            del patterns[pattern]
            if not patterns:
                del self._patterns[pattern.resource_type, principal]
        rules: _Rules = {}
        for entry in entries:
            rules[entry.principal] = (*rules.get(entry.principal, ()), entry)
        if rules:
            table[key] = rules
        for principal in rules:
            self._patterns.setdefault((pattern.resource_type, principal), {})[pattern] = None
        if table is self._prefixed and bool(before) != bool(rules):
            lengths = self._lengths.setdefault(pattern.resource_type, Counter())
            lengths[len(pattern.name)] += 1 if rules else -1
            self._ordered[pattern.resource_type] = tuple(sorted(+lengths))

    def decide(self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str) -> Decision:
        """The decision for one resource. ``host`` is an address as text."""
        key = principal, host, operation, resource_type, name
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            found = self._known[key] = self._decided(principal, host, operation, resource_type, name)
        return found

    def _decided(self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str) -> Decision:
        if principal in self._super_users:
            return Decision(True, SUPER_USER)
        host = canonical(host)
        implied = IMPLY.get(operation, frozenset())
        allowed: Decision | None = None
        has_rules = False
        for pattern_type, pattern_name, rules in self._covering(resource_type, name):
            has_rules = True
            for entry in (*rules.get(principal, ()), *(rules.get(ANY_USER, ()) if principal != ANY_USER else ())):
                if entry.host != WILDCARD and canonical(entry.host) != host:
                    continue
                same = entry.operation in (operation, Operation.ALL)
                if entry.permission is Permission.DENY and same:
                    return Decision(False, (Pattern(resource_type, pattern_type, pattern_name), entry))
                if allowed is None and entry.permission is Permission.ALLOW and (same or entry.operation in implied):
                    allowed = Decision(True, (Pattern(resource_type, pattern_type, pattern_name), entry))
        if allowed is not None:
            return allowed
        return Decision(False, NO_MATCH) if has_rules else self._without_rules

    def _covering(self, resource_type: ResourceType, name: str) -> Iterator[tuple[PatternType, str, _Rules]]:
        """The patterns with rules that cover a resource, the most specific first."""
        for literal in (name, WILDCARD) if name != WILDCARD else (name,):
            rules = self._literal.get((resource_type, literal))
            if rules is not None:
                yield PatternType.LITERAL, literal, rules
        size = len(name)
        for length in reversed(self._ordered.get(resource_type, ())):
            if length <= size:
                prefix = name[:length]
                rules = self._prefixed.get((resource_type, prefix))
                if rules is not None:
                    yield PatternType.PREFIXED, prefix, rules

    def decide_any(self, principal: str, host: str, operation: Operation, resource_type: ResourceType) -> Decision:
        """Whether there can be a resource of this type on which the operation is allowed.

        Operations imply nothing here. Source: KIP-679; as in Kafka, a resource that nobody names stands for those without rules.
        """
        key = principal, host, operation, resource_type
        found = self._known_of_any.get(key)
        if found is None:
            if len(self._known_of_any) >= REMEMBERED:
                self._known_of_any.clear()
            found = self._known_of_any[key] = self._decided_any(principal, host, operation, resource_type)
        return found

    def _decided_any(self, principal: str, host: str, operation: Operation, resource_type: ResourceType) -> Decision:
        typical = self._decided(principal, host, operation, resource_type, "hardcode")
        if typical.allowed:
            return typical
        host = canonical(host)
        allowing: dict[Pattern, Entry] = {}
        denied: dict[Pattern, Entry] = {}
        for who in {principal, ANY_USER}:
            for pattern in self._patterns.get((resource_type, who), ()):
                table = self._literal if pattern.pattern_type is PatternType.LITERAL else self._prefixed
                for entry in table[resource_type, pattern.name][who]:
                    if (entry.host == WILDCARD or canonical(entry.host) == host) and entry.operation in (operation, Operation.ALL):
                        (denied if entry.permission is Permission.DENY else allowing)[pattern] = entry
        everything = Pattern(resource_type, PatternType.LITERAL, WILDCARD)
        if everything in denied:
            return Decision(False, (everything, denied[everything]))
        for pattern, entry in allowing.items():
            dominating = (Pattern(resource_type, PatternType.PREFIXED, pattern.name[:end]) for end in range(1, len(pattern.name) + 1))
            if pattern == everything or (
                not (pattern.pattern_type is PatternType.LITERAL and pattern in denied) and not any(each in denied for each in dominating)
            ):
                return Decision(True, (pattern, entry))
        return Decision(False, NO_MATCH)
