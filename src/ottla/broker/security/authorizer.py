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

Lookups are by name: a dictionary for literal patterns, and for prefixed ones a sorted list in which each prefix knows the longest other one
that it begins with. Of a name's prefixes, the longest is the last in the list that is not after the name, or one that this begins with::

    list      a   ab   abc   abd   b            longest shorter one    ab: a   abc: ab   abd: ab
    name      abcz ──▶ abc ──▶ ab ──▶ a         name  abz ──▶ abd (no prefix of it) ──▶ ab ──▶ a

So a check takes a binary search, whatever the number of rules. Within a pattern, rules are found by principal. A rule has its decision and
the operations that it is about ready, as bits, so a check makes no objects but the key of its result. Results are remembered until a rule
changes.

Source: KIP-11, KIP-290, KIP-679 (any resource of a type); Kafka's StandardAuthorizerData and Authorizer.authorizeByResourceType.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ottla.base.acls import (
    ANY_USER,
    IMPLY,
    RESOURCE_TYPES,
    WILDCARD,
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
    canonical,
)

#: ``authorizer.class.name``: Kafka's authorizer with ZooKeeper, its name before 2.4, and the one of Kafka 4. All mean the same here.
CLASSES = (
    "kafka.security.authorizer.AclAuthorizer",
    "kafka.security.auth.SimpleAclAuthorizer",
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
)
#: Results that are remembered, and characters of a name in one: clients choose the names of resources, also such as do not exist.
REMEMBERED, NAME_REMEMBERED = 100_000, 255
#: Reasons of decisions without a rule.
SUPER_USER, NO_RULES, NO_MATCH, SAME_PROCESS = "super user", "no rules for the resource", "no matching rule", "broker of the same process"


class AccessDecision(NamedTuple):
    """Whether the operation is allowed, and by what: a rule, or one of the reasons above."""

    allowed: bool
    rule: tuple[Pattern, Entry] | str

    @property
    def reason(self) -> str:
        """The rule as text."""
        return self.rule if isinstance(self.rule, str) else f"{self.rule[1]} on {self.rule[0]}"


_NO_MATCH, _SUPER_USER = AccessDecision(False, NO_MATCH), AccessDecision(True, SUPER_USER)


class _Rule(NamedTuple):
    """A rule as the index has it. Bit n of ``allows`` and ``denies`` is the operation with code n."""

    #: None: every host.
    host: str | None
    #: What it allows, with implied operations; 0 if it denies.
    allows: int
    #: What it denies; 0 if it allows.
    denies: int
    decision: AccessDecision
    entry: Entry


_EVERY_OPERATION = sum(1 << operation for operation in Operation)


def _bits(entry: Entry) -> tuple[int, int]:
    """The operations that a rule allows, and those that it denies."""
    asked = _EVERY_OPERATION if entry.operation is Operation.ALL else 1 << entry.operation
    if entry.permission is not Permission.ALLOW:
        return 0, asked
    return asked | sum(1 << implied for implied, by in IMPLY.items() if entry.operation in by), 0


def _rule(pattern: Pattern, entry: Entry) -> _Rule:
    host = None if entry.host == WILDCARD else canonical(entry.host)
    allows, denies = _bits(entry)
    return _Rule(host, allows, denies, AccessDecision(not denies, (pattern, entry)), entry)


#: Rules of one pattern by principal.
_Rules = dict[str, tuple[_Rule, ...]]


class _Prefix:
    """A prefix with its rules. References save a lookup by name for each prefix that is passed."""

    __slots__ = ("name", "rules", "shorter")

    def __init__(self, name: str, rules: _Rules, shorter: "_Prefix | None") -> None:
        self.name = name
        self.rules = rules
        #: The longest other prefix that it begins with; None: there is none.
        self.shorter = shorter


class Prefixes:
    """Prefixes with their rules, by name: which ones does a name begin with?"""

    __slots__ = ("_names", "_sorted")

    def __init__(self) -> None:
        #: Sorted, and the prefixes of these names.
        self._names: list[str] = []
        self._sorted: list[_Prefix] = []

    def collect(self, name: str, found: list[_Rules]) -> None:
        """Adds the rules of a name's prefixes, itself included if it is one, the longest first."""
        prefix = self._longest_of(name)
        while prefix is not None:
            found.append(prefix.rules)
            prefix = prefix.shorter

    def _longest_of(self, name: str) -> _Prefix | None:
        place = bisect_right(self._names, name)
        prefix = self._sorted[place - 1] if place else None
        while prefix is not None and not name.startswith(prefix.name):
            prefix = prefix.shorter
        return prefix

    def change(self, name: str, rules: _Rules) -> None:
        """Replaces the rules of a prefix; one without rules is removed."""
        place = bisect_left(self._names, name)
        found = self._sorted[place] if place < len(self._names) and self._names[place] == name else None
        if found is not None and rules:
            found.rules = rules
        elif found is not None:
            del self._names[place], self._sorted[place]
            for longer in self._longer(name, place):
                if longer.shorter is found:
                    longer.shorter = found.shorter
        elif rules:
            added = _Prefix(name, rules, self._longest_of(name))
            for longer in self._longer(name, place):
                if longer.shorter is added.shorter:
                    longer.shorter = added
            self._names.insert(place, name)
            self._sorted.insert(place, added)

    def _longer(self, name: str, place: int) -> Iterator[_Prefix]:
        """Those from a place in the list on that begin with a name."""
        while place < len(self._names) and self._names[place].startswith(name):
            yield self._sorted[place]
            place += 1


class _OfType:
    """The rules about resources of one type."""

    __slots__ = ("literal", "patterns", "prefixed", "prefixes")

    def __init__(self) -> None:
        self.literal: dict[str, _Rules] = {}
        self.prefixed: dict[str, _Rules] = {}
        self.prefixes = Prefixes()
        #: Patterns with rules of a principal.
        self.patterns: dict[str, dict[Pattern, None]] = {}

    def covering(self, name: str) -> list[_Rules]:
        """The rules of the patterns that cover a resource, the most specific first."""
        found = [rules for rules in (self.literal.get(name), self.literal.get(WILDCARD)) if rules is not None]
        self.prefixes.collect(name, found)
        return found

    def table(self, pattern_type: PatternType) -> dict[str, _Rules]:
        return self.literal if pattern_type is PatternType.LITERAL else self.prefixed


class Authorizer:
    """The rules of the cluster, indexed."""

    def __init__(self, super_users: Iterable[str] = (), *, allow_without_rules: bool = False) -> None:
        self._super_users = frozenset(super_users)
        self._without_rules = AccessDecision(allow_without_rules, NO_RULES)
        self._types: dict[ResourceType, _OfType] = {kind: _OfType() for kind in RESOURCE_TYPES}
        #: Results since the last change; at most REMEMBERED each.
        self._known: dict[tuple[str, str, Operation, ResourceType, str], AccessDecision] = {}
        self._known_of_any: dict[tuple[str, str, Operation, ResourceType], AccessDecision] = {}

    def change(self, pattern: Pattern, entries: Iterable[Entry]) -> None:
        """Replaces the rules of a pattern."""
        self._known.clear()
        self._known_of_any.clear()
        kind = self._types[pattern.resource_type]
        table = kind.table(pattern.pattern_type)
        before = table.pop(pattern.name, {})
        for principal in before:
            del kind.patterns[principal][pattern]
            if not kind.patterns[principal]:
                del kind.patterns[principal]
        rules: _Rules = {}
        for entry in entries:
            rules[entry.principal] = (*rules.get(entry.principal, ()), _rule(pattern, entry))
        if rules:
            table[pattern.name] = rules
        for principal in rules:
            kind.patterns.setdefault(principal, {})[pattern] = None
        if table is kind.prefixed:
            kind.prefixes.change(pattern.name, rules)

    def decide(self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str) -> AccessDecision:
        """The decision for one resource. ``host`` is an address as text."""
        if len(name) > NAME_REMEMBERED:
            return self._decided(principal, host, operation, resource_type, name)
        key = principal, host, operation, resource_type, name
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            found = self._known[key] = self._decided(principal, host, operation, resource_type, name)
        return found

    def _decided(self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str) -> AccessDecision:
        if principal in self._super_users:
            return _SUPER_USER
        bit, address, allowed = 1 << operation, None, None
        covering = self._types[resource_type].covering(name)
        for rules in covering:
            for who in (principal, ANY_USER):
                for only_host, allows, denies, decision, _ in rules.get(who, ()):
                    if not (allows | denies) & bit:
                        continue
                    if only_host is not None:
                        address = address or canonical(host)
                        if only_host != address:
                            continue
                    if denies:
                        return decision
                    if allowed is None:
                        allowed = decision
        if allowed is not None:
            return allowed
        return _NO_MATCH if covering else self._without_rules

    def decide_any(self, principal: str, host: str, operation: Operation, resource_type: ResourceType) -> AccessDecision:
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

    def _decided_any(self, principal: str, host: str, operation: Operation, resource_type: ResourceType) -> AccessDecision:
        typical = self._decided(principal, host, operation, resource_type, "hardcode")
        if typical.allowed:
            return typical
        address, kind = canonical(host), self._types[resource_type]
        allowing: dict[Pattern, Entry] = {}
        denied: dict[Pattern, Entry] = {}
        for who in {principal, ANY_USER}:
            for pattern in kind.patterns.get(who, ()):
                for rule in kind.table(pattern.pattern_type)[pattern.name][who]:
                    if rule.host in (None, address) and rule.entry.operation in (operation, Operation.ALL):
                        (denied if rule.denies else allowing)[pattern] = rule.entry
        everything = Pattern(resource_type, PatternType.LITERAL, WILDCARD)
        if everything in denied:
            return AccessDecision(False, (everything, denied[everything]))
        for pattern, entry in allowing.items():
            dominating = (Pattern(resource_type, PatternType.PREFIXED, pattern.name[:end]) for end in range(1, len(pattern.name) + 1))
            if pattern == everything or (
                not (pattern.pattern_type is PatternType.LITERAL and pattern in denied) and not any(each in denied for each in dominating)
            ):
                return AccessDecision(True, (pattern, entry))
        return _NO_MATCH
