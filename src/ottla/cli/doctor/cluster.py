"""What is wrong with a cluster's brokers: whether they can be reached, agree with each other, and are all there.

A listener is looked at as a client sees it: the cluster names an address for each broker (advertised.listeners), and whoever connects has
to reach the broker at that address from where *he* is. An address that means "this machine" is wrong for all who are elsewhere, even if
something answers there.

Clocks cannot be read through the protocol without writing a record. What can be known: a KRaft controller dates its own row when it
describes the quorum; and a record whose topic is stamped by the broker (LogAppendTime) cannot be newer than the broker's clock, so one from
the future shows a clock that is ahead. That a broker's clock is behind stays unknown elsewhere.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterator

from ottla.base.ids import TopicPartition
from ottla.cli.common.arguments import duration_text
from ottla.cli.doctor.facts import Address, Facts, Finding, Visit, address_text

#: Groups and transactions tolerate less than that well; NTP keeps machines within a fraction of it.
SKEW_MS = 2_000
#: By default brokers take records that are up to an hour ahead (message.timestamp.after.max.ms).
FUTURE_MS = 3_600_000
#: 2000-01-01. No record is older; a timestamp in seconds is.
OLDEST_MS = 946_684_800_000


def bootstrap(facts: Facts) -> Iterator[Finding]:
    """The addresses that were given: each is one that a client may try first."""
    for visit in facts.bootstrap:
        where = address_text(visit.address)
        if visit.error is not None:
            alone = not any(other.error is None for other in facts.bootstrap)
            yield Finding(
                severity="problem" if alone else "warning",
                what="No broker answers at this address" if alone else "No broker answers at one of the addresses to begin with",
                evidence=visit.error,
                remedy="Start the broker, or name another address with -b; look at the firewall between here and there.",
                address=where,
            )
        elif visit.took_ms * 2 > facts.patience_ms:
            yield _slow(visit)
    ids = {visit.cluster_id for visit in facts.bootstrap if visit.error is None and visit.cluster_id}
    if len(ids) > 1:
        yield Finding(
            severity="problem",
            what="The addresses to begin with belong to different clusters",
            evidence=", ".join(f"{address_text(one.address)} is of {one.cluster_id}" for one in facts.bootstrap if one.cluster_id),
            remedy="Name the brokers of one cluster only; a client takes the first that answers.",
        )


def _slow(visit: Visit, broker: int | None = None) -> Finding:
    return Finding(
        severity="warning",
        what="A broker takes long to answer",
        evidence=f"connecting and asking for versions and brokers took {visit.took_ms:.0f} ms",
        remedy="Look at the load of its machine, the network and the name service.",
        address=address_text(visit.address),
        broker=broker,
    )


def listeners(facts: Facts) -> Iterator[Finding]:
    """The address that the cluster names for each broker."""
    given = [visit for visit in facts.bootstrap if visit.error is None]
    ids = {visit.cluster_id for visit in given if visit.cluster_id}
    remote = [visit for visit in given if visit.hosts and not any(_is_here(host) for host in visit.hosts)]
    places: dict[Address, list[int]] = defaultdict(list)
    for broker, visit in sorted(facts.listeners.items()):
        places[visit.address].append(broker)
        where = address_text(visit.address)
        why = _useless(visit, remote)
        if why is not None:
            yield Finding(
                severity="problem", what="A broker is advertised at an address that clients elsewhere cannot use", evidence=why,
                remedy="Set its advertised.listeners to an address that all clients reach, and restart it.", broker=broker, address=where,
            )  # fmt: skip
        elif visit.error is not None:
            yield Finding(
                severity="problem", what="A broker cannot be reached at the address that the cluster names for it", evidence=visit.error,
                remedy="If it is up, make its name known here and open its port, or set its advertised.listeners to an address that clients"
                " reach; if it is down, start it.", broker=broker, address=where, command="ottla broker list",
            )  # fmt: skip
        elif ids and visit.cluster_id and visit.cluster_id not in ids:
            yield Finding(
                severity="problem", what="A broker's advertised address leads to another cluster",
                evidence=f"cluster {visit.cluster_id} answers there, not {', '.join(sorted(ids))}",
                remedy="Set its advertised.listeners to its own address; look at tunnels and port forwards on the way.",
                broker=broker, address=where,
            )  # fmt: skip
        elif visit.took_ms * 2 > facts.patience_ms:
            yield _slow(visit, broker)
    for address, brokers in places.items():
        if len(brokers) > 1:
            yield Finding(
                severity="problem", what="Several brokers are advertised at the same address",
                evidence=f"brokers {', '.join(map(str, brokers))}",
                remedy="Give each its own advertised.listeners: clients ask the wrong one.", address=address_text(address),
            )  # fmt: skip


def _useless(visit: Visit, remote: list[Visit]) -> str | None:
    """Why an address is of no use to clients elsewhere; None: it is, as far as can be seen."""
    host = visit.address[0]
    if _is_wildcard(host):
        return f"{host} is an address to listen at, not one to connect to"
    if remote and (_is_here(host) or any(_is_here(one) for one in visit.hosts)):
        return f"{host} is the client's own machine to each client; the cluster was reached at {address_text(remote[0].address)}"
    return None


def _is_here(host: str) -> bool:
    if host.lower().rstrip(".") in ("localhost", "localhost.localdomain"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def controller(facts: Facts) -> Iterator[Finding]:
    """Whether there is one, and whether the brokers agree on which."""
    if facts.has_quorum:
        yield from _quorum(facts)
        return
    views = {number: visit.controller for number, visit in facts.listeners.items() if visit.error is None}
    if not views:
        views = {-1 - number: visit.controller for number, visit in enumerate(facts.bootstrap) if visit.error is None}
    named = sorted({one for one in views.values() if one >= 0})
    if views and not named:
        yield Finding(
            severity="problem",
            what="There is no controller",
            evidence=f"none of {len(views)} brokers knows of one",
            remedy="Leaders do not move and topics are not created meanwhile. If it lasts for more than a moment, look at ZooKeeper and at"
            " the brokers' logs.",
            command="ottla cluster status",
        )
    elif len(named) > 1 or any(one < 0 for one in views.values()):
        said = ", ".join(f"broker {one} says {'none' if name < 0 else name}" for one, name in sorted(views.items()))
        yield Finding(
            severity="warning",
            what="The brokers do not agree on who is the controller",
            evidence=said,
            remedy="After an election that passes within seconds: ask again. If it stays, restart the broker whose opinion is its own.",
            command="ottla doctor --check controller",
        )


def _quorum(facts: Facts) -> Iterator[Finding]:
    quorum = facts.quorum
    if quorum is None:
        return
    if quorum.leader < 0:
        yield Finding(
            severity="problem",
            what="There is no controller: the metadata quorum has no leader",
            evidence=f"voters {', '.join(str(one.replica_id) for one in quorum.voters)}, epoch {quorum.leader_epoch}",
            remedy="Bring back a majority of the voters.",
            command="ottla cluster quorum",
        )
        return
    dated = [one.last_fetch_ms for one in quorum.voters if one.replica_id == quorum.leader and one.last_fetch_ms is not None]
    for one in quorum.voters:
        if dated and one.replica_id != quorum.leader and one.last_caught_up_ms is not None and dated[0] - one.last_caught_up_ms > 10_000:
            yield Finding(
                severity="warning", what="A voter of the metadata quorum is behind",
                evidence=f"node {one.replica_id} last had all {duration_text(dated[0] - one.last_caught_up_ms)} ago",
                remedy="Look whether that node is up, and at its log.", command="ottla cluster quorum",
            )  # fmt: skip


def brokers(facts: Facts) -> Iterator[Finding]:
    """Brokers that have replicas and are not there, are not let in, or that some do not know."""
    there = {node.id for node in facts.nodes}
    holding: dict[int, int] = defaultdict(int)
    for partitions in facts.topics.values():
        for one in partitions:
            for broker in one.replicas:
                holding[broker] += 1
    for broker in sorted(set(holding) - there):
        yield Finding(
            severity="problem", what="A broker is not there", evidence=f"{holding[broker]} partitions have a replica on it",
            remedy="Start it again; if it is gone for good, move its replicas to others.", broker=broker,
            command=f"ottla cluster reassign plan --all-topics --brokers {','.join(map(str, facts.alive)) or 'N'}",
        )  # fmt: skip
    for node in facts.nodes:
        if node.is_fenced:
            yield Finding(
                severity="problem", what="A broker is registered, but not let into the cluster", evidence="it is fenced",
                remedy="It is starting and catches up, or does not reach the controller: look at its log.", broker=node.id,
                command="ottla broker list",
            )  # fmt: skip
    for number, visit in sorted(facts.listeners.items()):
        unknown = sorted(set(facts.alive) - set(visit.brokers)) if visit.error is None else []
        if unknown:
            yield Finding(
                severity="warning", what="A broker does not know of all others",
                evidence=f"broker {number} does not name {', '.join(f'broker {one}' for one in unknown)}; others do",
                remedy="While a broker comes or goes that passes within seconds: ask again. If it stays, restart the one that does not"
                " know: it does not hear the controller.", broker=number, command="ottla doctor --check brokers",
            )  # fmt: skip


def versions(facts: Facts) -> Iterator[Finding]:
    """Whether all brokers take the same requests: in a cluster that is half upgraded they do not."""
    told = {number: visit.versions for number, visit in sorted(facts.listeners.items()) if visit.versions}
    kinds: dict[tuple[tuple[int, tuple[int, int]], ...], list[int]] = defaultdict(list)
    for number, found in told.items():
        kinds[tuple(sorted(found.items()))].append(number)
    if len(kinds) < 2:
        return
    keys = sorted({key for found in told.values() for key in found})
    different = [key for key in keys if len({found.get(key) for found in told.values()}) > 1]
    first = different[0]
    said = "; ".join(
        f"brokers {', '.join(map(str, several))}: " + (f"{found[first][0]} to {found[first][1]}" if first in found else "none")
        for several, found in ((several, dict(kind)) for kind, several in kinds.items())
    )
    yield Finding(
        severity="warning",
        what="Brokers run different versions",
        evidence=f"{len(different)} kinds of requests differ, say of key {first}: {said}",
        remedy="Finish the upgrade: clients may meet one broker or the other.",
        command=f"ottla cluster apis --broker {next(iter(kinds.values()))[0]}",
    )


def clocks(facts: Facts) -> Iterator[Finding]:
    """What times tell of clocks; see the module."""
    quorum = facts.quorum
    if quorum is not None:
        own = [one.last_fetch_ms for one in quorum.voters if one.replica_id == quorum.leader and one.last_fetch_ms is not None]
        ahead_ms = own[0] - facts.quorum_at_ms if own else 0
        if abs(ahead_ms) > SKEW_MS + facts.quorum_took_ms:
            yield Finding(
                severity="warning", what="The controller's clock and the one here differ",
                evidence=f"it is {duration_text(abs(ahead_ms))} {'ahead' if ahead_ms > 0 else 'behind'}",
                remedy="Set both by NTP: look at chronyc tracking or timedatectl on both machines.", broker=quorum.leader,
            )  # fmt: skip
    stamped: dict[int, tuple[int, TopicPartition]] = {}
    strange: dict[tuple[str, bool], dict[int, int]] = defaultdict(dict)
    for tp, newest in sorted(facts.newest_ms.items()):
        by_broker = facts.topic_settings.get(tp.topic, {}).get("message.timestamp.type") == "LogAppendTime"
        if by_broker and newest - facts.now_ms > SKEW_MS:
            leader = next((one.leader for one in facts.topics.get(tp.topic, ()) if one.partition == tp.partition), -1)
            stamped[leader] = max(stamped.get(leader, (newest, tp)), (newest, tp))
        elif not by_broker and newest - facts.now_ms > FUTURE_MS:
            strange[tp.topic, True][tp.partition] = newest
        elif not by_broker and 0 <= newest < OLDEST_MS:
            strange[tp.topic, False][tp.partition] = newest
    for leader, (newest, tp) in sorted(stamped.items()):
        yield Finding(
            severity="warning", what="A broker's clock is ahead of the one here, or was when it wrote the newest record",
            evidence=f"the newest record of {tp} was stamped {duration_text(newest - facts.now_ms)} from now",
            remedy="Set both by NTP: look at chronyc tracking or timedatectl on both machines.", broker=leader if leader >= 0 else None,
            topic=tp.topic, partitions=[tp.partition],
        )  # fmt: skip
    for (topic, future), found in strange.items():
        yield _strange(topic, found, future=future, now_ms=facts.now_ms)


def _strange(topic: str, found: dict[int, int], *, future: bool, now_ms: int) -> Finding:
    """Records whose producer gave them a time that cannot be."""
    newest = max(found.values())
    if future:
        evidence = f"the newest timestamp is {newest}, {duration_text(newest - now_ms)} from now"
        remedy = "Look at the producer's clock, and whether it gives milliseconds. Retention by time keeps such records until then."
    else:
        evidence = f"the newest timestamp is {newest}: before the year 2000"
        remedy = "The producer probably gives seconds for milliseconds. Retention by time deletes such records at once."
    return Finding(
        severity="warning", what="Records have timestamps that cannot be right", evidence=evidence, remedy=remedy, topic=topic,
        partitions=sorted(found), command=f"ottla consume {topic} --partition {min(found)} --tail 1 -o json",
    )  # fmt: skip
