"""Checks of access: who may connect, who may do what, and who was refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import NamedTuple

from ottla.base.acls import ANY_USER, Permission
from ottla.base.listeners import SecurityProtocol
from ottla.base.origin import ANONYMOUS
from ottla.client.doctor.facts import Facts, Finding, Probe

#: Principals that a finding names.
NAMED_MAX = 5
LISTENERS, PROTOCOLS, OPEN_TO_ALL, SUPER_USERS = (
    "listeners", "listener.security.protocol.map", "allow.everyone.if.no.acl.found", "super.users",
)  # fmt: skip
CLIENT_AUTH, MECHANISMS = "ssl.client.auth", "sasl.enabled.mechanisms"
#: Settings of brokers that the check needs.
SECURITY_SETTINGS = (LISTENERS, PROTOCOLS, OPEN_TO_ALL, SUPER_USERS, CLIENT_AUTH, MECHANISMS)
#: Of Kafka; the map is empty by default.
OWN_PROTOCOLS = {str(protocol): protocol for protocol in SecurityProtocol}


class OpenListener(NamedTuple):
    """A listener of a broker that other machines can reach, by its settings."""

    broker: int
    name: str
    protocol: SecurityProtocol
    #: Whether its clients have names: SASL, or certificates that are required.
    authenticates: bool

    def __str__(self) -> str:
        return f"{self.name} of broker {self.broker}"


def access(facts: Facts) -> Iterator[Finding]:
    """Listeners without access rules or authentication; refused accesses; refused principals and users without a rule."""
    listeners = [one for broker, settings in sorted(facts.broker_settings.items()) for one in remote_listeners(broker, settings)]
    if facts.acls is None:
        yield from _no_rules(facts, listeners)
    else:
        yield from _open_with_rules(facts, listeners)
        yield from _refused(facts)
        yield from _users_without_rules(facts)
    yield from _clear_passwords(facts, listeners)


def remote_listeners(broker: int, settings: Mapping[str, str | None]) -> Iterator[OpenListener]:
    """The listeners whose address is not a loopback one. Settings of single listeners are not looked at."""
    named = dict(part.strip().split(":", 1) for part in (settings.get(PROTOCOLS) or "").split(",") if ":" in part)
    required = settings.get(CLIENT_AUTH) == "required"
    for text in (settings.get(LISTENERS) or "").split(","):
        name, slashes, address = text.strip().partition("://")
        protocol = OWN_PROTOCOLS.get(named.get(name.upper(), name).upper())
        host = address.rpartition(":")[0].strip("[]")
        if slashes and protocol is not None and host != "localhost" and not _is_loopback(host):
            yield OpenListener(broker, name.upper(), protocol, protocol.sasl or (protocol is SecurityProtocol.SSL and required))


def _no_rules(facts: Facts, listeners: list[OpenListener]) -> Iterator[Finding]:
    """There is no authorizer."""
    is_open = sorted(broker for broker, probe in facts.listeners.items() if probe.error is None and _is_remote(probe))
    if not is_open:
        return
    known = {one.broker for one in listeners}
    anonymous = [str(one) for one in listeners if not one.authenticates] + [f"broker {one}" for one in is_open if one not in known]
    yield Finding(
        severity="warning",
        what="Everyone who can reach the brokers may do everything" if anonymous else "Every client that authenticates may do everything",
        evidence="authorizer.class.name is not set; listeners that other machines can reach: "
        + _listed(anonymous or [str(one) for one in listeners]),
        remedy="Set authorizer.class.name and super.users and add access rules, or restrict access to the network.",
        command="ottla acl add --help",
    )


def _open_with_rules(facts: Facts, listeners: list[OpenListener]) -> Iterator[Finding]:
    """There are rules, and they let in clients without a name."""
    if str(facts.broker_setting(OPEN_TO_ALL)).lower() == "true":
        yield Finding(
            severity="warning",
            what="Everyone may use every resource that no access rule is about",
            evidence=f"{OPEN_TO_ALL} is true",
            remedy="Set it to false, and add rules for what clients need.",
            command="ottla acl add --help",
        )
    anonymous = [str(one) for one in listeners if not one.authenticates]
    granted = [
        rule for rule in facts.acls or () if rule.permission is Permission.ALLOW and rule.principal in (ANY_USER, ANONYMOUS)
    ]  # fmt: skip
    if anonymous and granted:
        yield Finding(
            severity="warning",
            what="Clients without a name may do what access rules allow",
            evidence=f"listeners without authentication that other machines can reach: {_listed(anonymous)}; rules for all users, such as: "
            + str(granted[0]),
            remedy="Use listeners with SASL or with ssl.client.auth=required, or remove the rules for all users.",
            command=f"ottla acl list --principal '{granted[0].principal}'",
        )
    supers = str(facts.broker_setting(SUPER_USERS) or "").split(";")
    if anonymous and ANONYMOUS in (one.strip() for one in supers):
        yield Finding(
            severity="problem",
            what="Clients without a name may do everything",
            evidence=f"{SUPER_USERS} has {ANONYMOUS}; listeners without authentication that other machines can reach: {_listed(anonymous)}",
            remedy=f"Remove {ANONYMOUS} from {SUPER_USERS}, and let clients authenticate.",
        )


def _refused(facts: Facts) -> Iterator[Finding]:
    refused: Counter[str] = Counter()
    for counts in facts.denied.values():
        refused.update(counts)
    without = sorted(set(refused) - {one.principal for one in facts.acls or ()})
    if without:
        yield Finding(
            severity="warning",
            what="Principals without an access rule were refused",
            evidence=_listed([f"{name} ({refused[name]} times)" for name in without]) + " in the last hour",
            remedy="Add rules for them, or correct the credentials of their clients.",
            command=f"ottla acl add --principal '{without[0]}' --operation read --topic NAME",
        )
    for broker, counts in sorted(facts.denied.items()):
        with_rules = {name: count for name, count in counts.items() if name not in without}
        if with_rules:
            yield Finding(
                severity="note",
                what="Accesses were refused in the last hour",
                evidence=_listed([f"{name} {count} times" for name, count in sorted(with_rules.items())]),
                remedy="The audit log of the broker names the resources; show what a principal may do, and by which rule.",
                command=f"ottla acl test --principal '{min(with_rules)}' --topic NAME",
                broker=broker,
            )


def _users_without_rules(facts: Facts) -> Iterator[Finding]:
    """Users who can authenticate, and are neither super users nor named by a rule. Refused requests are another finding."""
    named = {one.principal for one in facts.acls or ()} | {one.strip() for one in str(facts.broker_setting(SUPER_USERS) or "").split(";")}
    without = sorted(user for user in facts.scram_users if f"User:{user}" not in named)
    if without:
        yield Finding(
            severity="note",
            what="Users with SCRAM credentials have no access rule",
            evidence=_listed([f"User:{user}" for user in without]),
            remedy="Add rules for them, or delete their credentials. Until then only rules for all users apply to them.",
            command=f"ottla acl add --principal 'User:{without[0]}' --operation read --topic NAME",
        )


def _clear_passwords(facts: Facts, listeners: list[OpenListener]) -> Iterator[Finding]:
    """PLAIN without TLS sends passwords as they are."""
    if "PLAIN" not in [one.strip() for one in str(facts.broker_setting(MECHANISMS) or "").split(",")]:
        return
    clear = [str(one) for one in listeners if one.protocol is SecurityProtocol.SASL_PLAINTEXT]
    if clear:
        yield Finding(
            severity="warning",
            what="Passwords cross the network unencrypted",
            evidence=f"PLAIN is enabled on listeners without TLS that other machines can reach: {_listed(clear)}",
            remedy="Use SASL_SSL for these listeners, or SCRAM instead of PLAIN.",
        )


def _is_remote(probe: Probe) -> bool:
    """Whether other machines can reach the address."""
    return any(not _is_loopback(host.partition("%")[0]) for host in probe.hosts)


def _is_loopback(host: str) -> bool:
    """Whether it is an address of this machine alone. Names count as others; an empty one is every address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _listed(names: list[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
