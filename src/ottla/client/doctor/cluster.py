"""Checks of the brokers: they are reachable, agree with each other, and are all alive.

Listeners are checked from a client's view: each client must reach a broker at its advertised address (advertised.listeners). A loopback
address is wrong for clients on other machines, even if a broker answers there.

The protocol cannot read clocks without writing a record. Two cases are detectable. A KRaft controller adds its own time when it describes
the quorum. A record in a topic with LogAppendTime cannot be newer than the broker's clock, so one from the future shows a clock that is
ahead. Other clocks that are behind are not detected.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterator

from ottla.base.ids import TopicPartition
from ottla.base.readable import duration_text
from ottla.client.doctor.facts import Address, Facts, Finding, Probe
from ottla.client.options import address_text

#: Tolerated difference of clocks: groups and transactions tolerate it, and NTP keeps clocks much closer.
SKEW_MS = 2_000
#: By default brokers accept records up to an hour ahead (message.timestamp.after.max.ms).
FUTURE_MS = 3_600_000
#: 2000-01-01. A smaller timestamp is probably in seconds.
OLDEST_MS = 946_684_800_000
#: A certificate that expires within this time is reported.
CERTIFICATE_DAYS = 30


def bootstrap(facts: Facts) -> Iterator[Finding]:
    """Bootstrap servers: clients may try any of them first."""
    for probe in facts.bootstrap:
        where = address_text(*probe.address)
        if probe.error is not None:
            alone = not any(other.error is None for other in facts.bootstrap)
            yield Finding(
                severity="problem" if alone else "warning",
                what="No broker answers at this address" if alone else "No broker answers at one of the bootstrap servers",
                evidence=probe.error,
                remedy="Start the broker, or set another address with -b; check the firewalls between here and there.",
                address=where,
            )
        elif probe.took_ms * 2 > facts.timeout_ms:
            yield _slow(probe)
    ids = {probe.cluster_id for probe in facts.bootstrap if probe.error is None and probe.cluster_id}
    if len(ids) > 1:
        yield Finding(
            severity="problem",
            what="The bootstrap servers belong to different clusters",
            evidence=", ".join(f"{address_text(*one.address)} belongs to {one.cluster_id}" for one in facts.bootstrap if one.cluster_id),
            remedy="Use bootstrap servers of one cluster only: a client connects to the first that answers.",
        )


def _slow(probe: Probe, broker: int | None = None) -> Finding:
    return Finding(
        severity="warning",
        what="A broker answers slowly",
        evidence=f"connecting and querying versions and brokers took {probe.took_ms:.0f} ms",
        remedy="Check the load of its machine, the network and the name service.",
        address=address_text(*probe.address),
        broker=broker,
    )


def listeners(facts: Facts) -> Iterator[Finding]:
    """The advertised address of each broker."""
    answered = [probe for probe in facts.bootstrap if probe.error is None]
    ids = {probe.cluster_id for probe in answered if probe.cluster_id}
    remote = [probe for probe in answered if probe.hosts and not any(_is_loopback(host) for host in probe.hosts)]
    places: dict[Address, list[int]] = defaultdict(list)
    for broker, probe in sorted(facts.listeners.items()):
        places[probe.address].append(broker)
        where = address_text(*probe.address)
        why = _unusable_address(probe, remote)
        if why is not None:
            yield Finding(
                severity="problem", what="A broker advertises an address that clients on other machines cannot use", evidence=why,
                remedy="Set its advertised.listeners to an address that all clients can reach, and restart it.",
                broker=broker, address=where,
            )  # fmt: skip
        elif probe.error is not None:
            yield Finding(
                severity="problem", what="A broker is not reachable at its advertised address", evidence=probe.error,
                remedy="If it is down, start it. Otherwise resolve its name here and open its port, or set its advertised.listeners to an"
                " address that clients can reach.", broker=broker, address=where, command="ottla broker list",
            )  # fmt: skip
        elif ids and probe.cluster_id and probe.cluster_id not in ids:
            yield Finding(
                severity="problem", what="A broker's advertised address belongs to another cluster",
                evidence=f"cluster {probe.cluster_id} answers there, not {', '.join(sorted(ids))}",
                remedy="Set its advertised.listeners to its own address; check tunnels and port forwardings.",
                broker=broker, address=where,
            )  # fmt: skip
        elif probe.took_ms * 2 > facts.timeout_ms:
            yield _slow(probe, broker)
        yield from _certificate(probe, broker)
    for address, brokers in places.items():
        if len(brokers) > 1:
            yield Finding(
                severity="problem", what="Several brokers advertise the same address",
                evidence=f"brokers {', '.join(map(str, brokers))}",
                remedy="Set different advertised.listeners: clients connect to the wrong broker.", address=address_text(*address),
            )  # fmt: skip


def _certificate(probe: Probe, broker: int) -> Iterator[Finding]:
    """A certificate that soon expires. An expired one is an error of the connection."""
    if probe.certificate_days is not None and probe.certificate_days < CERTIFICATE_DAYS:
        yield Finding(
            severity="warning", what="A certificate of a broker expires soon",
            evidence=f"it is valid for {probe.certificate_days:.1f} days",
            remedy="Replace the key store file; the broker reads it again. See ottla tls issue for a private authority.",
            broker=broker, address=address_text(*probe.address),
        )  # fmt: skip


def _unusable_address(probe: Probe, remote: list[Probe]) -> str | None:
    """Why clients on other machines cannot use an address; None if nothing shows that."""
    host = probe.address[0]
    if _is_wildcard(host):
        return f"{host} is an address to listen on; clients cannot connect to it"
    if remote and (_is_loopback(host) or any(_is_loopback(one) for one in probe.hosts)):
        return f"{host} is a client's own machine; the cluster was reached at {address_text(*remote[0].address)}"
    return None


def _is_loopback(host: str) -> bool:
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
    """Whether there is a controller, and all brokers know it."""
    if facts.has_quorum:
        yield from _quorum(facts)
        return
    views = {number: probe.controller for number, probe in facts.listeners.items() if probe.error is None}
    if not views:
        views = {-1 - number: probe.controller for number, probe in enumerate(facts.bootstrap) if probe.error is None}
    named = sorted({one for one in views.values() if one >= 0})
    if views and not named:
        yield Finding(
            severity="problem",
            what="There is no controller",
            evidence=f"none of {len(views)} brokers knows one",
            remedy="Meanwhile leaders are not elected and topics not created. If it lasts, check ZooKeeper and the brokers' logs.",
            command="ottla cluster status",
        )
    elif len(named) > 1 or any(one < 0 for one in views.values()):
        yield Finding(
            severity="warning",
            what="The brokers know different controllers",
            evidence=", ".join(f"broker {one} knows {'none' if name < 0 else name}" for one, name in sorted(views.items())),
            remedy="This is normal for seconds after an election. If it lasts, restart the broker that differs from the others.",
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
            remedy="Start a majority of the voters.",
            command="ottla cluster quorum",
        )
        return
    dated = [one.last_fetch_ms for one in quorum.voters if one.replica_id == quorum.leader and one.last_fetch_ms is not None]
    for one in quorum.voters:
        if dated and one.replica_id != quorum.leader and one.last_caught_up_ms is not None and dated[0] - one.last_caught_up_ms > 10_000:
            yield Finding(
                severity="warning", what="A voter of the metadata quorum is behind",
                evidence=f"node {one.replica_id} was last caught up {duration_text(dated[0] - one.last_caught_up_ms)} ago",
                remedy="Check whether that node is up, and its log.", command="ottla cluster quorum",
            )  # fmt: skip


def brokers(facts: Facts) -> Iterator[Finding]:
    """Brokers with replicas that are down or fenced, or unknown to other brokers."""
    alive = {node.id for node in facts.nodes}
    holding: dict[int, int] = defaultdict(int)
    for partitions in facts.topics.values():
        for one in partitions:
            for broker in one.replicas:
                holding[broker] += 1
    for broker in sorted(set(holding) - alive):
        yield Finding(
            severity="problem", what="A broker is down", evidence=f"{holding[broker]} partitions have a replica on it",
            remedy="Start it; if it is lost, move its replicas to other brokers.", broker=broker,
            command=f"ottla cluster reassign plan --all-topics --brokers {','.join(map(str, facts.alive)) or 'N'}",
        )  # fmt: skip
    for node in facts.nodes:
        if node.is_fenced:
            yield Finding(
                severity="problem", what="A broker is registered but fenced", evidence="it is fenced",
                remedy="It is catching up after a start, or cannot reach the controller: check its log.", broker=node.id,
                command="ottla broker list",
            )  # fmt: skip
    for number, probe in sorted(facts.listeners.items()):
        unknown = sorted(set(facts.alive) - set(probe.brokers)) if probe.error is None else []
        if unknown:
            yield Finding(
                severity="warning", what="A broker does not know all others",
                evidence=f"broker {number} does not list {', '.join(f'broker {one}' for one in unknown)}; others do",
                remedy="This is normal for seconds while a broker starts or stops. If it lasts, restart the broker: it gets no updates"
                " from the controller.", broker=number, command="ottla doctor --check brokers",
            )  # fmt: skip


def versions(facts: Facts) -> Iterator[Finding]:
    """Whether all brokers support the same API versions: in a partly upgraded cluster they do not."""
    versions = {number: probe.versions for number, probe in sorted(facts.listeners.items()) if probe.versions}
    kinds: dict[tuple[tuple[int, tuple[int, int]], ...], list[int]] = defaultdict(list)
    for number, apis in versions.items():
        kinds[tuple(sorted(apis.items()))].append(number)
    if len(kinds) < 2:
        return
    keys = sorted({key for apis in versions.values() for key in apis})
    different = [key for key in keys if len({apis.get(key) for apis in versions.values()}) > 1]
    first = different[0]
    ranges = "; ".join(
        f"brokers {', '.join(map(str, several))}: " + (f"{apis[first][0]} to {apis[first][1]}" if first in apis else "none")
        for several, apis in ((several, dict(kind)) for kind, several in kinds.items())
    )
    yield Finding(
        severity="warning",
        what="Brokers run different versions",
        evidence=f"{len(different)} APIs differ, for example key {first}: {ranges}",
        remedy="Finish the upgrade.",
        command=f"ottla cluster apis --broker {next(iter(kinds.values()))[0]}",
    )


def clocks(facts: Facts) -> Iterator[Finding]:
    """Clocks that differ, as far as timestamps show."""
    quorum = facts.quorum
    if quorum is not None:
        own = [one.last_fetch_ms for one in quorum.voters if one.replica_id == quorum.leader and one.last_fetch_ms is not None]
        ahead_ms = own[0] - facts.quorum_at_ms if own else 0
        if abs(ahead_ms) > SKEW_MS + facts.quorum_took_ms:
            yield Finding(
                severity="warning", what="The clocks of the controller and this machine differ",
                evidence=f"it is {duration_text(abs(ahead_ms))} {'ahead' if ahead_ms > 0 else 'behind'}",
                remedy="Synchronize both by NTP: check chronyc tracking or timedatectl on both machines.", broker=quorum.leader,
            )  # fmt: skip
    stamped: dict[int, tuple[int, TopicPartition]] = {}
    invalid: dict[tuple[str, bool], dict[int, int]] = defaultdict(dict)
    for tp, newest in sorted(facts.newest_ms.items()):
        by_broker = facts.topic_settings.get(tp.topic, {}).get("message.timestamp.type") == "LogAppendTime"
        if by_broker and newest - facts.now_ms > SKEW_MS:
            leader = next((one.leader for one in facts.topics.get(tp.topic, ()) if one.partition == tp.partition), -1)
            stamped[leader] = max(stamped.get(leader, (newest, tp)), (newest, tp))
        elif not by_broker and newest - facts.now_ms > FUTURE_MS:
            invalid[tp.topic, True][tp.partition] = newest
        elif not by_broker and 0 <= newest < OLDEST_MS:
            invalid[tp.topic, False][tp.partition] = newest
    for leader, (newest, tp) in sorted(stamped.items()):
        yield Finding(
            severity="warning", what="A broker's clock is ahead of this machine's, or was when it wrote the newest record",
            evidence=f"the newest record of {tp} has a timestamp {duration_text(newest - facts.now_ms)} from now",
            remedy="Synchronize both by NTP: check chronyc tracking or timedatectl on both machines.",
            broker=leader if leader >= 0 else None, topic=tp.topic, partitions=[tp.partition],
        )  # fmt: skip
    for (topic, future), timestamps in invalid.items():
        yield _invalid_timestamps(topic, timestamps, future=future, now_ms=facts.now_ms)


def _invalid_timestamps(topic: str, timestamps: dict[int, int], *, future: bool, now_ms: int) -> Finding:
    """Records with implausible timestamps from their producer."""
    newest = max(timestamps.values())
    if future:
        evidence = f"the newest timestamp is {newest}, {duration_text(newest - now_ms)} from now"
        remedy = "Check the producer's clock, and that it sends milliseconds. Retention by time keeps such records until then."
    else:
        evidence = f"the newest timestamp is {newest}: before the year 2000"
        remedy = "The producer probably sends seconds instead of milliseconds. Retention by time deletes such records at once."
    return Finding(
        severity="warning", what="Records have implausible timestamps", evidence=evidence, remedy=remedy, topic=topic,
        partitions=sorted(timestamps), command=f"ottla consume {topic} --partition {min(timestamps)} --tail 1 -o json",
    )  # fmt: skip
