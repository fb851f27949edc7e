"""Checks of partitions and replicas: leaders, in-sync replicas, replication factors.

There is one finding per topic, with its partitions. Replicas that a reassignment is adding do not count as out of sync. A partition without
a leader has no further finding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ottla.base.ids import TopicPartition
from ottla.client.admin.results import PartitionDescription
from ottla.client.doctor.facts import Facts, Finding

#: Kafka's internal topics: the setting for their replication factor, and its default.
REPLICATION_SETTINGS = {
    "__consumer_offsets": ("offsets.topic.replication.factor", 3),
    "__transaction_state": ("transaction.state.log.replication.factor", 3),
    "__share_group_state": ("share.coordinator.state.topic.replication.factor", 3),
}
#: Kafka's leader.imbalance.per.broker.percentage.
IMBALANCE_PERCENT = 10


def partitions(facts: Facts) -> Iterator[Finding]:
    """Partitions that are offline, under min ISR, or under-replicated."""
    for topic, why in sorted(facts.undescribed.items()):
        yield Finding(
            severity="problem", what="The cluster cannot describe a topic", evidence=why,
            remedy="Repeat; if it lasts, check the controller's log.", topic=topic, command=f"ottla topic describe {topic}",
        )  # fmt: skip
    for topic, several in sorted(facts.topics.items()):
        least = _number(facts.topic_settings.get(topic, {}).get("min.insync.replicas"))
        offline: list[PartitionDescription] = []
        too_few: list[PartitionDescription] = []
        under_replicated: list[PartitionDescription] = []
        for one in several:
            if one.leader < 0:
                offline.append(one)
            elif least is not None and len(one.isr) < least:
                too_few.append(one)
            elif _is_under_replicated(facts, topic, one):
                under_replicated.append(one)
        if offline:
            yield _offline(facts, topic, offline)
        if too_few:
            yield Finding(
                severity="problem", what="Too few replicas are in sync for writes with acks=all",
                evidence=f"min.insync.replicas is {least}; {_evidence(topic, too_few)}", remedy=_remedy(facts, too_few), topic=topic,
                partitions=[one.partition for one in too_few], command=f"ottla topic partitions --under-min-isr {topic}",
            )  # fmt: skip
        if under_replicated:
            yield Finding(
                severity="warning", what="Replicas are not in sync", evidence=_evidence(topic, under_replicated),
                remedy=_remedy(facts, under_replicated), topic=topic, partitions=[one.partition for one in under_replicated],
                command=f"ottla topic partitions --under-replicated {topic}",
            )  # fmt: skip


def _number(value: str | None) -> int | None:
    return int(value) if value is not None and value.isdecimal() else None


def _is_under_replicated(facts: Facts, topic: str, one: PartitionDescription) -> bool:
    replicas = set(one.replicas).difference(facts.adding.get(TopicPartition(topic, one.partition), ()))
    return bool(replicas - set(one.isr) or replicas & set(one.offline_replicas))


def _evidence(topic: str, several: list[PartitionDescription]) -> str:
    first = several[0]
    example = f"{topic}-{first.partition} has replicas {_listed(first.replicas)}, in sync {_listed(first.isr)}"
    return example + (f"; {len(several) - 1} more partitions" if len(several) > 1 else "")


def _listed(brokers: list[int]) -> str:
    return ",".join(map(str, brokers)) or "none"


def _remedy(facts: Facts, several: list[PartitionDescription]) -> str:
    """How to bring replicas back into sync."""
    missing = {broker for one in several for broker in (*one.replicas, *one.offline_replicas) if broker not in one.isr}
    gone = sorted(missing - set(facts.alive))
    if gone:
        return f"Start {_brokers(gone)}."
    if not missing:
        return "Repair the disk of the offline replicas; see ottla broker log-dirs."
    return f"Check the log of {_brokers(sorted(missing))}: it is catching up, is slow (disk, network), or its log directory failed."


def _brokers(numbers: list[int]) -> str:
    return f"broker {numbers[0]}" if len(numbers) == 1 else f"brokers {', '.join(map(str, numbers))}"


def _offline(facts: Facts, topic: str, offline: list[PartitionDescription]) -> Finding:
    able = sorted({broker for one in offline for broker in [*one.isr, *(one.elr or [])]})
    gone = [broker for broker in able if broker not in facts.alive]
    if gone:
        remedy = f"Start {_brokers(gone)}, which has all records. Only if it is lost, elect another replica, which loses records."
    else:
        remedy = "Check the logs of the replicas' brokers: their disk may be offline. As a last resort, elect any replica."
    numbers = [one.partition for one in offline]
    return Finding(
        severity="problem", what="Partitions have no leader and cannot be read or written", evidence=_evidence(topic, offline),
        remedy=remedy, topic=topic, partitions=numbers,
        command=f"ottla cluster elect --unclean --dry-run --topic {topic}:{','.join(map(str, numbers))}",
    )  # fmt: skip


def leaders(facts: Facts) -> Iterator[Finding]:
    """Brokers that do not lead partitions for which they are the preferred, in-sync replica."""
    preferred: dict[int, int] = defaultdict(int)
    away: dict[int, list[TopicPartition]] = defaultdict(list)
    for topic, several in sorted(facts.topics.items()):
        for one in several:
            if one.leader < 0 or not one.replicas:
                continue
            first = one.replicas[0]
            preferred[first] += 1
            if one.leader != first and first in one.isr:
                away[first].append(TopicPartition(topic, one.partition))
    limit = _number(facts.broker_setting("leader.imbalance.per.broker.percentage"))
    limit = IMBALANCE_PERCENT if limit is None else limit
    by_itself = facts.broker_setting("auto.leader.rebalance.enable") != "false"
    for broker, lost in sorted(away.items()):
        share = 100 * len(lost) / preferred[broker]
        if share > limit:
            soon = " The controller does it every few minutes (leader.imbalance.check.interval.seconds)." if by_itself else ""
            yield Finding(
                severity="warning", what="A broker does not lead its preferred partitions",
                evidence=f"{len(lost)} of {preferred[broker]}, for example {lost[0]}: {share:.0f} %, above {limit} %",
                remedy=f"Elect the preferred replicas.{soon}", broker=broker,
                command="ottla cluster elect --all-topics",
            )  # fmt: skip


def replication(facts: Facts) -> Iterator[Finding]:
    """Topics that lose records or become unwritable when one broker fails."""
    brokers = len(facts.alive)
    for topic, several in sorted(facts.topics.items()):
        single = [one.partition for one in several if len(one.replicas) == 1]
        if single and brokers > 1:
            yield Finding(
                severity="warning", what="Records have only one replica in a cluster of several brokers",
                evidence=f"{len(single)} of {len(several)} partitions have one replica",
                remedy="Add replicas: run the plan that this command prints with ottla cluster reassign execute.", topic=topic,
                partitions=single, command=f"ottla cluster reassign plan --topic {topic} --replicas {min(3, brokers)}",
            )  # fmt: skip
        least = _number(facts.topic_settings.get(topic, {}).get("min.insync.replicas"))
        if least is None:
            continue
        factor = min((len(one.replicas) for one in several), default=0)
        if factor and least > factor:
            yield Finding(
                severity="problem", what="Writes with acks=all always fail: min.insync.replicas is above the number of replicas",
                evidence=f"min.insync.replicas is {least}, with {factor} replicas",
                remedy="Lower min.insync.replicas, or add replicas.", topic=topic,
                command=f"ottla config set topic {topic} min.insync.replicas={max(factor - 1, 1)}",
            )  # fmt: skip
        elif factor > 1 and least == factor:
            yield Finding(
                severity="warning", what="Writes with acks=all need all replicas: no broker may fail",
                evidence=f"min.insync.replicas is {least}, with {factor} replicas",
                remedy="Lower min.insync.replicas, or add a replica. Otherwise a restart of one broker stops writes.", topic=topic,
                command=f"ottla config set topic {topic} min.insync.replicas={factor - 1}",
            )  # fmt: skip


def internal_topics(facts: Facts) -> Iterator[Finding]:
    """Internal topics below their replication factor, which happens if they are created while few brokers are alive."""
    brokers = len(facts.alive)
    for topic, (setting, default) in REPLICATION_SETTINGS.items():
        value = _number(facts.broker_setting(setting))
        factor = default if value is None else value
        replicas = min(factor, brokers)
        few = [one for one in facts.topics.get(topic, ()) if len(one.replicas) < replicas]
        if few:
            yield Finding(
                severity="warning", what="An internal topic has fewer replicas than configured",
                evidence=f"{setting} is {factor}; {len(few)} partitions have {len(few[0].replicas)} replicas",
                remedy="Add replicas: run the plan that this command prints with ottla cluster reassign execute.", topic=topic,
                partitions=[one.partition for one in few], command=f"ottla cluster reassign plan --topic {topic} --replicas {replicas}",
            )  # fmt: skip
