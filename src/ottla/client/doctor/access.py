"""Checks of access: who may do what, and who was refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from ipaddress import ip_address

from ottla.client.doctor.facts import Facts, Finding, Probe

#: Principals that a finding names.
NAMED_MAX = 5


def access(facts: Facts) -> Iterator[Finding]:
    """Listeners without access rules; refused accesses; refused principals without a rule."""
    if facts.acls is None:
        yield from _open_listeners(facts)
        return
    refused: Counter[str] = Counter()
    for counts in facts.denied.values():
        refused.update(counts)
    without = sorted(set(refused) - {one.principal for one in facts.acls})
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


def _open_listeners(facts: Facts) -> Iterator[Finding]:
    is_open = sorted(broker for broker, probe in facts.listeners.items() if probe.error is None and _is_remote(probe))
    if is_open:
        yield Finding(
            severity="warning",
            what="Everyone who can reach the brokers may do everything",
            evidence=f"authorizer.class.name is not set; listeners that other machines can reach: {_listed([str(one) for one in is_open])}",
            remedy="Set authorizer.class.name and super.users and add access rules, or restrict access to the network.",
            command="ottla acl add --help",
        )


def _is_remote(probe: Probe) -> bool:
    """Whether other machines can reach the address."""
    for host in probe.hosts:
        try:
            if not ip_address(host.partition("%")[0]).is_loopback:
                return True
        except ValueError:
            continue
    return False


def _listed(names: list[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
