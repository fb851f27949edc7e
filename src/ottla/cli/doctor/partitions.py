"""What is wrong with partitions and their replicas: no leader, too few in sync, too few copies, the wrong leaders.

One finding per topic, with the partitions it is about. Replicas that a reassignment is adding are not missed. A partition without a leader
is told as that alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ottla.base.ids import TopicPartition
from ottla.cli.doctor.facts import Facts, Finding
from ottla.client.admin.results import PartitionDescription

#: Kafka's, for topics of the cluster's own: the setting that says how many copies are wished, and its default.
WISHED = {
    "__consumer_offsets": ("offsets.topic.replication.factor", 3),
    "__transaction_state": ("transaction.state.log.replication.factor", 3),
    "__share_group_state": ("share.coordinator.state.topic.replication.factor", 3),
}
#: Kafka's leader.imbalance.per.broker.percentage.
IMBALANCE_PERCENT = 10


def partitions(facts: Facts) -> Iterator[Finding]:
    """Partitions without a leader, with too few replicas in sync to write, or with some that are not."""
    for topic, why in sorted(facts.untold.items()):
        yield Finding(
            severity="problem", what="The cluster cannot describe a topic", evidence=why,
            remedy="Ask again; if it stays, look at the controller's log.", topic=topic, command=f"ottla topic describe {topic}",
        )  # fmt: skip
    for topic, several in sorted(facts.topics.items()):
        least = _number(facts.topic_settings.get(topic, {}).get("min.insync.replicas"))
        offline: list[PartitionDescription] = []
        too_few: list[PartitionDescription] = []
        lacking: list[PartitionDescription] = []
        for one in several:
            if one.leader < 0:
                offline.append(one)
            elif least is not None and len(one.isr) < least:
                too_few.append(one)
            elif _lacks(facts, topic, one):
                lacking.append(one)
        if offline:
            yield _offline(facts, topic, offline)
        if too_few:
            yield Finding(
                severity="problem", what="Fewer replicas are in sync than writes with acks=all need",
                evidence=f"min.insync.replicas is {least}; {_shown(topic, too_few)}", remedy=_remedy(facts, too_few), topic=topic,
                partitions=[one.partition for one in too_few], command=f"ottla topic partitions --under-min-isr {topic}",
            )  # fmt: skip
        if lacking:
            yield Finding(
                severity="warning", what="Replicas are not in sync", evidence=_shown(topic, lacking), remedy=_remedy(facts, lacking),
                topic=topic,
                partitions=[one.partition for one in lacking], command=f"ottla topic partitions --under-replicated {topic}",
            )  # fmt: skip


def _number(value: str | None) -> int | None:
    return int(value) if value is not None and value.isdecimal() else None


def _lacks(facts: Facts, topic: str, one: PartitionDescription) -> bool:
    there = set(one.replicas).difference(facts.coming.get(TopicPartition(topic, one.partition), ()))
    return bool(there - set(one.isr) or there & set(one.offline_replicas))


def _shown(topic: str, several: list[PartitionDescription]) -> str:
    first = several[0]
    said = f"{topic}-{first.partition} has replicas {_listed(first.replicas)}, in sync {_listed(first.isr)}"
    return said + (f"; {len(several) - 1} more like it" if len(several) > 1 else "")


def _listed(brokers: list[int]) -> str:
    return ",".join(map(str, brokers)) or "none"


def _remedy(facts: Facts, several: list[PartitionDescription]) -> str:
    """What brings replicas back into sync."""
    missing = {broker for one in several for broker in (*one.replicas, *one.offline_replicas) if broker not in one.isr}
    gone = sorted(missing - set(facts.alive))
    if gone:
        return f"Start {_brokers(gone)} again."
    if not missing:
        return "Bring back the disk of the replicas that are offline: ottla broker log-dirs names it."
    return f"Look at the log of {_brokers(sorted(missing))}: it is catching up, is slow (disk, network), or its log directory failed."


def _brokers(numbers: list[int]) -> str:
    return f"broker {numbers[0]}" if len(numbers) == 1 else f"brokers {', '.join(map(str, numbers))}"


def _offline(facts: Facts, topic: str, offline: list[PartitionDescription]) -> Finding:
    able = sorted({broker for one in offline for broker in [*one.isr, *(one.elr or [])]})
    gone = [broker for broker in able if broker not in facts.alive]
    if gone:
        remedy = f"Start {_brokers(gone)} again: it had all records. Only if it is gone for good, let another lead, which loses records."
    else:
        remedy = "Look at the logs of the replicas' brokers: their disk may be offline. Only as a last resort, let any replica lead."
    numbers = [one.partition for one in offline]
    return Finding(
        severity="problem", what="Partitions have no leader: nobody can read or write them", evidence=_shown(topic, offline), remedy=remedy,
        topic=topic, partitions=numbers,
        command=f"ottla cluster elect --unclean --dry-run --topic {topic}:{','.join(map(str, numbers))}",
    )  # fmt: skip


def leaders(facts: Facts) -> Iterator[Finding]:
    """Brokers whose partitions are led by others, though they could lead them: the load is not spread as it was planned."""
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
            soon = " The cluster does so by itself every few minutes (leader.imbalance.check.interval.seconds)." if by_itself else ""
            yield Finding(
                severity="warning", what="A broker does not lead the partitions that it should",
                evidence=f"{len(lost)} of {preferred[broker]}, say {lost[0]}: {share:.0f} %, above {limit} %",
                remedy=f"Have the preferred replicas lead again.{soon}", broker=broker,
                command="ottla cluster elect --all-topics",
            )  # fmt: skip


def replication(facts: Facts) -> Iterator[Finding]:
    """Topics whose only copy goes with one broker, or that one broker less makes unwritable."""
    brokers = len(facts.alive)
    for topic, several in sorted(facts.topics.items()):
        single = [one.partition for one in several if len(one.replicas) == 1]
        if single and brokers > 1:
            yield Finding(
                severity="warning", what="Records have one copy only, in a cluster of several brokers",
                evidence=f"{len(single)} of {len(several)} partitions have one replica",
                remedy="Give them more replicas: carry out the plan that this prints with ottla cluster reassign execute.", topic=topic,
                partitions=single, command=f"ottla cluster reassign plan --topic {topic} --replicas {min(3, brokers)}",
            )  # fmt: skip
        least = _number(facts.topic_settings.get(topic, {}).get("min.insync.replicas"))
        if least is None:
            continue
        factor = min((len(one.replicas) for one in several), default=0)
        if factor and least > factor:
            yield Finding(
                severity="problem", what="Writes with acks=all can never succeed: they need more replicas than there are",
                evidence=f"min.insync.replicas is {least}, with {factor} replicas",
                remedy="Lower min.insync.replicas, or add replicas.", topic=topic,
                command=f"ottla config set topic {topic} min.insync.replicas={max(factor - 1, 1)}",
            )  # fmt: skip
        elif factor > 1 and least == factor:
            yield Finding(
                severity="warning", what="No broker may fail: writes with acks=all need every replica",
                evidence=f"min.insync.replicas is {least}, with {factor} replicas",
                remedy="Lower min.insync.replicas, or add a replica: a restart of one broker stops writes.", topic=topic,
                command=f"ottla config set topic {topic} min.insync.replicas={factor - 1}",
            )  # fmt: skip


def internal_topics(facts: Facts) -> Iterator[Finding]:
    """Topics of the cluster's own with fewer copies than are wished, as happens when they are made while brokers are few."""
    brokers = len(facts.alive)
    for topic, (setting, default) in WISHED.items():
        told = _number(facts.broker_setting(setting))
        wished = min(default if told is None else told, brokers)
        few = [one for one in facts.topics.get(topic, ()) if len(one.replicas) < wished]
        if few:
            yield Finding(
                severity="warning", what="A topic of the cluster's own has fewer copies than wished",
                evidence=f"{setting} is {default if told is None else told}; {len(few)} partitions have {len(few[0].replicas)} replicas",
                remedy="Give it more replicas: carry out the plan that this prints with ottla cluster reassign execute.", topic=topic,
                partitions=[one.partition for one in few], command=f"ottla cluster reassign plan --topic {topic} --replicas {wished}",
            )  # fmt: skip
