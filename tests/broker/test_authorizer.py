"""The authorizer decides as a naive reading of Kafka's rules does."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.base.acls import (
    ANY_USER,
    IMPLY,
    OPERATIONS,
    PATTERN_TYPES,
    WILDCARD,
    Entry,
    Filter,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
    covers,
    deciding_rule,
)
from ottla.base.options import ConfigError
from ottla.broker.metadata.configs import BrokerOptions
from ottla.broker.security.access import configured, super_users
from ottla.broker.security.authorizer import NO_MATCH, NO_RULES, SUPER_USER, Authorizer, Prefixes
from ottla.store import layout

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
READ, WRITE, DESCRIBE, ALL = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL
ALLOW, DENY = Permission.ALLOW, Permission.DENY
ALICE, BOB = "User:alice", "User:bob"
HOST = "10.0.0.7"

#: Few values, so that rules meet.
NAMES = st.sampled_from(["a", "ab", "abc", "b", "ba", "*", ""])
RULES = st.lists(
    st.tuples(
        st.builds(Pattern, st.sampled_from([TOPIC, GROUP]), st.sampled_from(PATTERN_TYPES), NAMES.filter(bool)),
        st.builds(
            Entry,
            st.sampled_from([ALICE, BOB, ANY_USER]),
            st.sampled_from([WILDCARD, HOST, "10.0.0.8"]),
            st.sampled_from([READ, WRITE, DESCRIBE, ALL, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS]),
            st.sampled_from([ALLOW, DENY]),
        ),
    ),
    max_size=12,
)
OPERATION = st.sampled_from([READ, WRITE, DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS])

Rules = list[tuple[Pattern, Entry]]


def authorizer_of(rules: Rules, **fields: bool) -> Authorizer:
    found = Authorizer(["User:root"], allow_without_rules=fields.get("allow_without_rules", False))
    for pattern in {pattern for pattern, _ in rules}:
        found.change(pattern, [entry for other, entry in rules if other == pattern])
    return found


def concerns(entry: Entry, operation: Operation) -> bool:
    return entry.principal in (ALICE, ANY_USER) and entry.host in (WILDCARD, HOST) and entry.operation in (operation, ALL)


def naive(rules: Rules, operation: Operation, kind: ResourceType, name: str, *, allow_without_rules: bool) -> bool:
    """What alice may do from HOST: every rule is looked at."""
    about = [entry for pattern, entry in rules if pattern.resource_type is kind and covers(pattern, name)]
    if any(entry.permission is DENY and concerns(entry, operation) for entry in about):
        return False
    implied = [operation, *IMPLY.get(operation, ())]
    if any(entry.permission is ALLOW and any(concerns(entry, each) for each in implied) for entry in about):
        return True
    return not about and allow_without_rules


@pytest.mark.slow
@settings(max_examples=400)
@given(RULES, OPERATION, st.sampled_from([TOPIC, GROUP]), NAMES, st.booleans())
def test_a_decision_is_that_of_all_rules_together(rules: Rules, operation: Operation, kind: ResourceType, name: str, open_: bool) -> None:
    found = authorizer_of(rules, allow_without_rules=open_).decide(ALICE, HOST, operation, kind, name)
    assert found.allowed == naive(rules, operation, kind, name, allow_without_rules=open_)
    if not isinstance(found.rule, str):
        pattern, entry = found.rule
        assert (pattern, entry) in rules and covers(pattern, name) and (entry.permission is ALLOW) == found.allowed


@pytest.mark.slow
@settings(max_examples=200)
@given(RULES, RULES, OPERATION, NAMES)
def test_changed_rules_count_at_once(before: Rules, after: Rules, operation: Operation, name: str) -> None:
    authorizer = authorizer_of(before)
    authorizer.decide(ALICE, HOST, operation, TOPIC, name)
    for pattern in {pattern for pattern, _ in before + after}:
        authorizer.change(pattern, [entry for other, entry in after if other == pattern])
    assert authorizer.decide(ALICE, HOST, operation, TOPIC, name).allowed == naive(after, operation, TOPIC, name, allow_without_rules=False)


@pytest.mark.slow
@settings(max_examples=400)
@given(RULES, st.sampled_from([READ, WRITE]))
def test_any_resource_is_found_where_one_of_some_name_is_allowed(rules: Rules, operation: Operation) -> None:
    """But for deny rules on single names below an allowed prefix, which Kafka does not consider."""
    rules = [(pattern, entry) for pattern, entry in rules if not (entry.permission is DENY and pattern.pattern_type is PREFIXED)]
    found = authorizer_of(rules).decide_any(ALICE, HOST, operation, TOPIC).allowed
    own = [(pattern, entry) for pattern, entry in rules if pattern.resource_type is TOPIC]
    allowing = [pattern for pattern, entry in own if entry.permission is ALLOW and concerns(entry, operation)]
    denied = [pattern for pattern, entry in own if entry.permission is DENY and concerns(entry, operation)]
    everything = Pattern(TOPIC, LITERAL, WILDCARD)
    assert found == (everything not in denied and any(pattern.pattern_type is PREFIXED or pattern not in denied for pattern in allowing))


@settings(max_examples=300)
@given(st.lists(st.text("ab", min_size=1, max_size=6), max_size=15), st.lists(st.integers(0, 14), max_size=8), st.text("ab", max_size=8))
def test_prefixes_of_a_name_are_found_after_additions_and_removals(added: list[str], removed: list[int], name: str) -> None:
    prefixes = Prefixes()
    present = list(dict.fromkeys(added))
    for prefix in present:
        # Rules by principal; the principal is the prefix, so that the test recognizes them.
        prefixes.change(prefix, {"before": ()})
        prefixes.change(prefix, {prefix: ()})
    for place in removed:
        if place < len(present):
            prefixes.change(present.pop(place), {})
    covering: list[Any] = []
    prefixes.collect(name, covering)
    found = [prefix for rules in covering for prefix in rules]
    assert found == sorted((prefix for prefix in present if name.startswith(prefix)), key=len, reverse=True)


def test_a_denied_prefix_covers_the_allowed_names_below_it() -> None:
    rules = [
        (Pattern(TOPIC, LITERAL, "abc"), Entry(ALICE, WILDCARD, WRITE, ALLOW)),
        (Pattern(TOPIC, PREFIXED, "ab"), Entry(ANY_USER, WILDCARD, ALL, DENY)),
    ]
    assert not authorizer_of(rules).decide_any(ALICE, HOST, WRITE, TOPIC).allowed
    assert authorizer_of(rules[:1]).decide_any(ALICE, HOST, WRITE, TOPIC).allowed


def test_a_super_user_may_do_what_a_rule_denies() -> None:
    rules = [(Pattern(TOPIC, LITERAL, WILDCARD), Entry(ANY_USER, WILDCARD, ALL, DENY))]
    found = authorizer_of(rules).decide("User:root", HOST, WRITE, TOPIC, "t")
    assert found.allowed and found.reason == SUPER_USER
    assert not authorizer_of(rules).decide(ALICE, HOST, WRITE, TOPIC, "t").allowed


def test_a_denial_of_read_is_none_of_describe() -> None:
    """Line 78."""
    rules = [
        (Pattern(TOPIC, LITERAL, "t"), Entry(ALICE, WILDCARD, READ, DENY)),
        (Pattern(TOPIC, LITERAL, "t"), Entry(ALICE, WILDCARD, WRITE, ALLOW)),
    ]
    authorizer = authorizer_of(rules)
    assert [authorizer.decide(ALICE, HOST, each, TOPIC, "t").allowed for each in (READ, WRITE, DESCRIBE)] == [False, True, True]


def test_a_reason_names_the_rule() -> None:
    rules = [(Pattern(TOPIC, PREFIXED, "ord"), Entry(ALICE, HOST, READ, ALLOW))]
    authorizer = authorizer_of(rules)
    assert authorizer.decide(ALICE, HOST, READ, TOPIC, "orders").reason == f"Allow User:alice from {HOST} Read on Topic:PREFIXED:ord"
    assert authorizer.decide(BOB, HOST, READ, TOPIC, "orders").reason == NO_MATCH
    assert authorizer.decide(BOB, HOST, READ, TOPIC, "other").reason == NO_RULES


@pytest.mark.parametrize(("written", "host"), [("0:0:0:0:0:0:0:1", "::1"), ("10.0.0.7", "::ffff:10.0.0.7"), ("fe80::1", "fe80::1%eth0")])
def test_an_address_has_several_texts(written: str, host: str) -> None:
    rules = [(Pattern(TOPIC, LITERAL, "t"), Entry(ALICE, written, READ, ALLOW))]
    assert authorizer_of(rules).decide(ALICE, host, READ, TOPIC, "t").allowed
    assert not authorizer_of(rules).decide(ALICE, "10.0.0.1", READ, TOPIC, "t").allowed


@pytest.mark.parametrize(
    ("written", "host"), [("0:0:0:0:0:0:0:1", "::1"), ("::ffff:10.0.0.7", "10.0.0.7"), ("10.0.0.7", "::ffff:10.0.0.7")]
)
def test_a_tool_decides_about_addresses_as_brokers_do(written: str, host: str) -> None:
    """Otherwise ``ottla acl test`` would say that a denied client is allowed."""
    pattern = Pattern(TOPIC, LITERAL, "t")
    rules = [(pattern, Entry(ALICE, WILDCARD, READ, ALLOW)), (pattern, Entry(ALICE, written, READ, DENY))]
    assert deciding_rule(rules, ALICE, host, READ, TOPIC, "t") == (False, rules[1])
    assert deciding_rule(rules, ALICE, "10.0.0.8", READ, TOPIC, "t") == (True, rules[0])


def test_match_finds_every_pattern_that_covers_a_name_and_any_only_the_name() -> None:
    patterns = [
        Pattern(TOPIC, LITERAL, "orders"),
        Pattern(TOPIC, PREFIXED, "ord"),
        Pattern(TOPIC, LITERAL, WILDCARD),
        Pattern(TOPIC, PREFIXED, "orders"),
        Pattern(TOPIC, LITERAL, "other"),
        Pattern(GROUP, LITERAL, "orders"),
    ]

    def found(**fields: object) -> list[int]:
        wanted = Filter(**{"resource_type": TOPIC, "name": "orders", **fields})  # type: ignore[arg-type]
        return [number for number, pattern in enumerate(patterns) if wanted.matches_pattern(pattern)]

    assert found(pattern_type=PatternType.MATCH) == [0, 1, 2, 3]
    assert found(pattern_type=PatternType.ANY) == [0, 3]
    assert found(pattern_type=LITERAL) == [0]
    assert found(pattern_type=PREFIXED, name=None) == [1, 3]
    assert found(resource_type=ResourceType.ANY) == [0, 3, 5]


# The settings.


def test_an_authorizer_that_cannot_be_had_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"^authorizer.class.name: 'com.example.Ours' is not one of .*AclAuthorizer.*StandardAuthorizer"):
        BrokerOptions.of({"authorizer.class.name": "com.example.Ours"})
    for name in ("kafka.security.authorizer.AclAuthorizer", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"):
        assert configured(BrokerOptions.of({"authorizer.class.name": name})) is not None
    assert configured(BrokerOptions()) is None


def test_super_users_are_separated_by_semicolons() -> None:
    options = BrokerOptions.of({"super.users": "User:CN=a,O=b; User:root;"})
    assert super_users(options.super_users) == ["User:CN=a,O=b", "User:root"]
    for wrong in ("root", "User:", "User:a,b;c", ":a"):
        with pytest.raises(ConfigError, match=r"^super.users: "):
            BrokerOptions.of({"super.users": wrong})


# The store.


@given(st.text(min_size=1, max_size=20), st.sampled_from(PATTERN_TYPES), st.sampled_from(list(OPERATIONS)))
def test_every_name_has_a_path_of_its_own(name: str, kind: PatternType, resource: ResourceType) -> None:
    pattern = Pattern(resource, kind, name)
    path = layout.acl(pattern)
    assert layout.acl_of(path) == pattern
    parent, _, element = path.rpartition("/")
    assert parent in layout.PERSISTENT_PATHS and element not in ("", ".", "..") and element.isprintable()


def test_rules_have_kafkas_layout() -> None:
    pattern = Pattern(ResourceType.TRANSACTIONAL_ID, LITERAL, "t-1")
    entry = Entry(ALICE, WILDCARD, Operation.IDEMPOTENT_WRITE, ALLOW)
    assert layout.acl(pattern) == "/kafka-acl/TransactionalId/t-1"
    assert layout.acl(pattern._replace(pattern_type=PREFIXED)) == "/kafka-acl-extended/prefixed/TransactionalId/t-1"
    written = b'{"version":1,"acls":[{"principal":"User:alice","permissionType":"Allow","operation":"IdempotentWrite","host":"*"}]}'
    assert layout.encode_acls([entry]) == written and layout.decode_acls(written) == (entry,)
    assert layout.encode_acl_change(pattern) == b"TRANSACTIONAL_ID:t-1"
    extended = b'{"version":1,"resourceType":"TOPIC","name":"a","patternType":"PREFIXED"}'
    assert layout.encode_acl_change(Pattern(TOPIC, PREFIXED, "a")) == extended
    assert layout.acl_change(PREFIXED, 7) == "/kafka-acl-extended-changes/acl_changes_0000000007"


@pytest.mark.parametrize(
    "content",
    [
        b"x",
        b'{"version":2,"acls":[]}',
        b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Allow","operation":"Fly","host":"*"}]}',
        b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Perhaps","operation":"Read","host":"*"}]}',
        b'{"version":1,"acls":[{"principal":"a","permissionType":"Allow","operation":"Read","host":"*"}]}',
    ],
)
def test_content_that_cannot_be_read_is_no_rule(content: bytes) -> None:
    with pytest.raises(layout.MalformedNode):
        layout.decode_acls(content)


def test_decisions_about_long_names_are_not_remembered() -> None:
    """A client without any right may name topics, groups and transactional ids of 32,767 characters, 100,000 of them."""
    authorizer = Authorizer()
    for number in range(1_000):
        assert not authorizer.decide(ALICE, HOST, READ, GROUP, f"{number:0>32000}").allowed
        assert not authorizer.decide(ALICE, HOST, READ, GROUP, f"{number:0>249}").allowed
    assert len(authorizer._known) == 1_000
