"""Collects the metrics of a process, in a thread beside the event loop.

The loop does nothing for it: it keeps plain counters, and the thread reads them, and the state of partitions and groups, while the loop
changes them. Python's interpreter lock makes single reads whole. Dicts are copied in one call before they are iterated, and the copy is
made again if the dict changed meanwhile. So each figure is right at some moment of the collection, and figures may be of different moments.

Figures of partitions are in columns of numbers, not in an object per partition: those would start Python's garbage collector, which holds
up the loop too. ``Pace`` gives up the interpreter lock after a fraction of a millisecond.
"""

import gc
import os
import platform
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from itertools import chain, islice
from typing import Any, TypeVar

from ottla.base.ids import TopicPartition
from ottla.broker.metadata.image import NO_LEADER
from ottla.broker.node import Node
from ottla.broker.replica.follower import Follower
from ottla.broker.replica.leader import Leader
from ottla.broker.replica.traffic import TopicTraffic
from ottla.server.metrics import families as m
from ottla.server.metrics.exposition import Pace, Sample, escaped, histogram_samples, label_text, summary_samples
from ottla.server.metrics.families import Family
from ottla.server.metrics.group_lag import LagClock
from ottla.server.metrics.histogram import Histogram
from ottla.server.metrics.observed import ObservedBroker, ObservedProcess
from ottla.server.metrics.request_times import RequestTimes
from ottla.wire.messages import API

T = TypeVar("T")
#: Attempts to copy a dict that changes.
COPIES_MAX = 20
STARTING, RUNNING, SHUTTING_DOWN, STOPPING = 1, 3, 6, 7
Samples = Iterable[Sample]


def copied(copy: Callable[[], T]) -> T:
    """The result of a copy that fails when the loop changes a dict meanwhile."""
    for _ in range(COPIES_MAX):
        try:
            return copy()
        except RuntimeError:
            continue
    return copy()


class Columns:
    """Figures of the replicas of one broker, one column of numbers per metric."""

    LEADER = (*m.PARTITION, *m.TOPIC_PARTITION)

    def __init__(self) -> None:
        self.labels: list[str] = []
        self.leader_labels: list[str] = []
        self.log = {name: array("q") for name in m.LOG}
        self.partition = {name: array("q") for name in m.PARTITION}
        self.topic_partition = {name: array("q") for name in m.TOPIC_PARTITION}
        self.totals = dict.fromkeys(m.REPLICA_MANAGER, 0)
        self.left_out = 0

    def add_log(self, replica: Any, labels: str) -> None:
        log, columns = replica.log, self.log
        self.labels.append(labels)
        columns["size"].append(sum([segment.size for segment in log.segments]))
        columns["logstartoffset"].append(log.start_offset)
        columns["logendoffset"].append(log.end_offset)
        columns["numlogsegments"].append(len(log.segments))

    def add_leader(self, leader: Leader, labels: str | None, *, me: int, moving: bool) -> None:
        """``labels``: None counts the partition in the totals only."""
        in_sync = len(leader.isr)
        replicas = len(leader.replicas) - len(leader.adding)
        least = min(leader.options.min_insync_replicas, replicas)
        behind, below, at = in_sync < replicas, in_sync < least, in_sync == least
        totals = self.totals
        totals["underreplicatedpartitions"] += behind
        totals["underminisrpartitioncount"] += below
        totals["atminisrpartitioncount"] += at
        totals["reassigningpartitions"] += moving
        if labels is None:
            return
        self.leader_labels.append(labels)
        one, other = self.partition, self.topic_partition
        one["insyncreplicascount"].append(in_sync)
        one["replicascount"].append(replicas)
        one["underreplicated"].append(behind)
        one["underminisr"].append(below)
        one["atminisr"].append(at)
        other["current_offset"].append(leader.high_watermark)
        other["oldest_offset"].append(leader.log.start_offset)
        other["in_sync_replica"].append(in_sync)
        other["replicas"].append(replicas)
        other["leader"].append(me)
        other["leader_is_preferred"].append(leader.replicas[0] == me)
        other["under_replicated_partition"].append(behind)


class Collection:
    """Collects the metrics of a process; used by one thread at a time."""

    def __init__(self, process: ObservedProcess, lag: LagClock) -> None:
        self._process = process
        self._lag = lag
        self._took_s = 0.0
        self._idle = 1.0
        #: CPU time and wall time of the loop's thread at the last look.
        self._cpu: tuple[float, float] | None = None
        self.collector = GarbageCollections()
        self._info = label_text(version=version("ottla"), python=platform.python_version())

    def families(self, pace: Pace) -> Iterator[tuple[Family, Samples]]:
        """All metrics, each family once."""
        began_s = time.monotonic()
        self.look()
        found: dict[str, list[Samples]] = {}
        for broker in list(self._process.brokers):
            for family, samples in self._of_broker(broker, pace):
                pace.step()
                found.setdefault(family.name, []).append(samples)
        for family, samples in self._of_process():
            pace.step()
            found.setdefault(family.name, []).append(samples)
        for name, parts in found.items():
            pace.step()
            yield m.FAMILIES[name], chain.from_iterable(parts)
        self._took_s = time.monotonic() - began_s
        yield m.SCRAPE_SECONDS, _one(self._took_s)

    def look(self) -> None:
        """Notes the share of time in which the loop was idle since the last look."""
        clock = self._process.loop_clock
        if clock is None:
            return
        try:
            now = (time.clock_gettime(clock), time.monotonic())
        except OSError:
            return
        if self._cpu is not None and now[1] - self._cpu[1] > 0.5:
            self._idle = min(max(1 - (now[0] - self._cpu[0]) / (now[1] - self._cpu[1]), 0.0), 1.0)
            self._cpu = now
        self._cpu = self._cpu or now

    # A broker.

    def _of_broker(self, broker: ObservedBroker, pace: Pace) -> Iterator[tuple[Family, Samples]]:
        node = broker.node
        own = label_text(broker=node.context.broker_id)
        columns = self._columns(node, pace)
        yield from _traffic(node, own, pace)
        for name, family in m.REPLICA_MANAGER.items():
            yield family, _one(columns.totals[name], own)
        partitions = node.partitions
        yield m.ISR_SHRINKS, _one(partitions.isr_shrinks, own)
        yield m.ISR_EXPANDS, _one(partitions.isr_expands, own)
        for families, values, labels in (
            (m.LOG, columns.log, columns.labels),
            (m.PARTITION, columns.partition, columns.leader_labels),
            (m.TOPIC_PARTITION, columns.topic_partition, columns.leader_labels),
        ):
            for name, family in families.items():
                yield family, (("", text, value) for text, value in zip(labels, values[name], strict=False))
        yield m.LEFT_OUT, _one(columns.left_out, label_text(broker=node.context.broker_id, kind="partition"))
        yield from _controller(node, own, pace)
        yield from _times(broker.times, node.context.broker_id)
        yield from _waiting(node, pace)
        yield from _directories(node)
        yield from self._groups(node, pace)
        yield from _state(node, own, stopping=self._process.stopping)
        yield from _connections(broker)
        yield from _quotas(node)
        if node.context.options.schema_registry_url:
            yield from _schemas(node, own)

    def _columns(self, node: Node, pace: Pace) -> Columns:
        columns, context, partitions = Columns(), node.context, node.partitions
        me, most, topics = context.broker_id, context.options.metrics_partitions_max, context.image.topics
        pace.pause()
        leaders = copied(lambda: list(partitions.leaders.values()))
        pace.pause()
        followers = copied(lambda: list(partitions.followers.values()))
        pace.pause()
        columns.totals["leadercount"] = len(leaders)
        columns.totals["partitioncount"] = len(leaders) + len(followers)
        columns.totals["offlinereplicacount"] = len(partitions.offline)
        columns.left_out = max(len(leaders) + len(followers) - most, 0)
        replicas: Iterable[Leader | Follower] = chain(leaders, followers)
        for number, replica in enumerate(replicas):
            topic, partition = replica.partition
            text = f'{{broker="{me}",topic="{escaped(topic)}",partition="{partition}"}}' if number < most else None
            try:
                if isinstance(replica, Leader):
                    known = topics.get(topic)
                    moving = known is not None and (partition in known.adding or partition in known.removing)
                    columns.add_leader(replica, text, me=me, moving=moving)
                if text is not None:
                    columns.add_log(replica, text)
            except (AttributeError, IndexError):
                # The loop replaces the log's state at this moment; the partition is in the next collection again.
                _level(columns)
            pace.step()
        return columns

    def _groups(self, node: Node, pace: Pace) -> Iterator[tuple[Family, Samples]]:
        me, most = node.context.broker_id, node.context.options.metrics_group_partitions_max
        states: Counter[tuple[str, str]] = Counter()
        members: list[Sample] = []
        offsets: list[Sample] = []
        lags: list[Sample] = []
        seconds: list[Sample] = []
        groups = count = 0
        for shard in copied(lambda: list(node.groups.shards.values())):
            machine = shard.machine
            for group in copied(lambda machine=machine: list(machine.by_id.values())):  # type: ignore[misc]
                groups += 1
                states[group.kind, group.state_name] += 1
                if groups <= most:
                    members.append(("", label_text(broker=me, consumergroup=group.group_id), group.member_count))
                pace.step()
            for group_id, topic, partition, offset in committed(machine.offsets.by_group):
                count += 1
                if count <= most:
                    labels = label_text(broker=me, consumergroup=group_id, topic=topic, partition=partition)
                    offsets.append(("", labels, offset))
                    end = self._lag.end(TopicPartition(topic, partition))
                    if end is not None:
                        lags.append(("", labels, max(end - offset, 0)))
                        seconds.append(("", labels, round(self._lag.seconds(TopicPartition(topic, partition), offset), 3)))
                pace.step()
        yield m.GROUPS["numgroups"], _one(groups, label_text(broker=me))
        yield m.GROUPS["numoffsets"], _one(count, label_text(broker=me))
        yield m.GROUP_STATES, [("", label_text(broker=me, kind=kind, state=state), number) for (kind, state), number in states.items()]
        yield m.GROUP_MEMBERS, members
        yield m.GROUP["current_offset"], offsets
        yield m.GROUP["lag"], lags
        yield m.GROUP_LAG_SECONDS, seconds
        yield m.LEFT_OUT, _one(max(count - most, 0), label_text(broker=me, kind="offset"))

    # The process.

    def _of_process(self) -> Iterator[tuple[Family, Samples]]:
        process, counters = self._process, self._process.counters
        traffic = process.connection_context.traffic
        requests = copied(lambda: list(counters.requests.items()))
        yield m.REQUESTS, [("", label_text(request=_api(key)), number) for key, number in requests]
        yield m.CONNECTIONS_MADE, _one(traffic.accepted)
        yield m.AUTHENTICATIONS, _one(traffic.authentications)
        yield m.FAILED_AUTHENTICATIONS, _one(traffic.failed_authentications)
        yield m.RECEIVED, _one(traffic.received_bytes)
        yield m.SENT, _one(traffic.sent_bytes)
        yield m.CUT, [("", label_text(reason=reason), number) for reason, number in copied(lambda: list(traffic.cut.items()))]
        yield m.PROCESSOR_IDLE, _one(round(self._idle, 4))
        yield m.HANDLER_IDLE, _one(round(self._idle, 4))
        yield m.FLUSH_TIME, summary_samples([counters.sync_times])
        yield m.SYNC_SECONDS, histogram_samples(counters.sync_times)
        yield m.COMMIT_SECONDS, histogram_samples(counters.commit_times)
        yield m.COMMITS, _one(counters.commits)
        yield m.FLUSHES, _one(counters.flushes)
        yield m.STORE_SECONDS, histogram_samples(counters.store_times)
        yield m.LOOP_LAG, histogram_samples(counters.loop_lags)
        yield m.LOOP_LAG_MAX, _one(round(counters.lag_max_s, 6))
        blocked, starved = (label_text(kind=kind) for kind in ("blocked", "starved"))
        yield m.LOOP_STALLS, [("", blocked, counters.stalls), ("", starved, counters.starved)]
        yield m.FAILED_REQUESTS, _one(counters.failed_requests)
        yield m.DENIED, _one(counters.denied)
        yield m.THROTTLED, _one(counters.throttled_requests)
        yield m.THROTTLE_SECONDS, _one(counters.throttle_ms / 1000)
        if counters.certificate_days_left is not None:
            yield m.CERTIFICATE_DAYS, _one(round(counters.certificate_days_left, 3))
        yield m.COMPACTIONS, _one(counters.compactions)
        read, wrote = (label_text(direction=direction) for direction in ("read", "written"))
        yield m.COMPACTION_BYTES, [("", read, counters.compaction_read_bytes), ("", wrote, counters.compaction_written_bytes)]
        yield m.SCRUBBED, _one(counters.scrubbed_bytes)
        yield m.DAMAGES, _one(counters.scrub_damages)
        yield m.INFO, _one(1, self._info)
        clients = process.client_metrics
        yield m.CLIENT_METRIC, clients.samples()
        kept, rejected = label_text(result="kept"), label_text(result="rejected")
        yield m.CLIENT_PUSHES, [("", kept, clients.pushes), ("", rejected, clients.rejected)]
        yield from self._of_system()

    def _of_system(self) -> Iterator[tuple[Family, Samples]]:
        io = _proc_io()
        if io is not None:
            yield m.DISK_READ, _one(io[0])
            yield m.DISK_WRITE, _one(io[1])
        resident = _resident_bytes()
        if resident is not None:
            yield m.MEMORY, _one(resident, label_text(area="heap"))
        yield m.THREADS, _one(threading.active_count())
        text = label_text(gc="python")
        yield m.GC_TIME, [("_count", text, self.collector.count), ("_sum", text, round(self.collector.seconds, 6))]


class GarbageCollections:
    """Counts Python's garbage collections and their time."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self._began_s = 0.0

    def start(self) -> None:
        gc.callbacks.append(self._called)

    def stop(self) -> None:
        if self._called in gc.callbacks:
            gc.callbacks.remove(self._called)

    def _called(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._began_s = time.perf_counter()
        else:
            self.count += 1
            self.seconds += time.perf_counter() - self._began_s


def committed(by_group: Mapping[str, Mapping[str, Mapping[int, Any]]]) -> Iterator[tuple[str, str, int, int]]:
    """(group, topic, partition, offset) of committed offsets that the loop may change meanwhile."""
    for group_id, topics in copied(lambda: list(by_group.items())):
        for topic, partitions in copied(lambda topics=topics: list(topics.items())):  # type: ignore[misc]
            for partition, value in copied(lambda partitions=partitions: list(partitions.items())):  # type: ignore[misc]
                yield group_id, topic, partition, value.offset


def _one(value: float, labels: str = "") -> list[Sample]:
    return [("", labels, value)]


def _api(key: int) -> str:
    found = API.get(key)
    return found.name if found is not None else str(key)


def _level(columns: Columns) -> None:
    """Removes the half of a row, so that all columns have the same length."""
    for labels, values in ((columns.labels, columns.log), (columns.leader_labels, {**columns.partition, **columns.topic_partition})):
        length = min(len(labels), *map(len, values.values()))
        del labels[length:]
        for column in values.values():
            del column[length:]


def _traffic(node: Node, own: str, pace: Pace) -> Iterator[tuple[Family, Samples]]:
    context = node.context
    me, most = context.broker_id, context.options.metrics_topics_max
    pace.pause()
    topics = copied(lambda: list(context.traffic.topics.items()))
    pace.pause()
    total = TopicTraffic()
    total.add(context.traffic.others)
    named: list[tuple[str, TopicTraffic]] = []
    for number, (topic, counters) in enumerate(topics):
        total.add(counters)
        if number < most:
            named.append((label_text(broker=me, topic=topic), counters))
        pace.step()
    for attribute, family in m.TOPICS.items():
        all_topics = _one(getattr(total, attribute), label_text(broker=me, topic=""))
        yield family, chain(all_topics, _attributes(named, attribute))
    yield m.LEFT_OUT, _one(max(len(topics) - most, 0), label_text(broker=me, kind="topic"))


def _attributes(named: Iterable[tuple[str, TopicTraffic]], attribute: str) -> Iterator[Sample]:
    for labels, counters in named:
        yield "", labels, getattr(counters, attribute)


def _controller(node: Node, own: str, pace: Pace) -> Iterator[tuple[Family, Samples]]:
    context, controller = node.context, node.controller
    values = dict.fromkeys(m.CONTROLLER, 0)
    values["activecontrollercount"] = int(controller.active)
    partitions: Samples = ()
    if controller.active:
        image, most = context.image, context.options.metrics_topics_max
        topics = copied(lambda: list(image.topics.values()))
        brokers = copied(lambda: list(image.brokers.values()))
        values["globaltopiccount"] = len(topics)
        values["fencedbrokercount"] = sum(broker.fenced for broker in brokers)
        values["activebrokercount"] = len(brokers) - values["fencedbrokercount"]
        values["topicstodeletecount"] = len(image.deleting)
        for topic in topics:
            values["globalpartitioncount"] += len(topic.replicas)
            for number, state in copied(lambda topic=topic: list(topic.states.items())):  # type: ignore[misc]
                replicas = topic.replicas.get(number)
                values["offlinepartitionscount"] += state.leader == NO_LEADER
                values["preferredreplicaimbalancecount"] += replicas is not None and state.leader != replicas[0]
                pace.step()
        # Made one by one as they are written: the labels of all topics take milliseconds.
        partitions = (("", label_text(broker=context.broker_id, topic=topic.name), len(topic.replicas)) for topic in islice(topics, most))
        yield m.BROKERS, _one(len(brokers), own)
        where = [(one.broker, f"{one.host}:{one.port}") for one in brokers]
        yield m.BROKER_INFO, [("", label_text(broker=context.broker_id, id=number, address=address), 1) for number, address in where]
    for name, family in m.CONTROLLER.items():
        yield family, _one(values[name], own)
    yield m.TOPIC_PARTITIONS, partitions
    yield m.LEADER_ELECTIONS, _one(controller.election_queue.elections, own)
    yield m.UNCLEAN_ELECTIONS, _one(controller.election_queue.unclean_elections, own)


def _times(times: RequestTimes, broker: int) -> Iterator[tuple[Family, Samples]]:
    local, remote = (copied(lambda found=found: dict(found)) for found in (times.local, times.remote))  # type: ignore[misc]
    empty = Histogram()
    for key in dict.fromkeys((*local, *remote)):
        labels = label_text(broker=broker, request=_api(key))
        yield m.TOTAL_TIME, summary_samples([local.get(key, empty), remote.get(key, empty)], labels)
    for family, stage, found in ((m.LOCAL_TIME, "local", local), (m.REMOTE_TIME, "remote", remote)):
        for key, histogram in found.items():
            yield family, summary_samples([histogram], label_text(broker=broker, request=_api(key)))
            yield m.REQUEST_SECONDS, histogram_samples(histogram, label_text(broker=broker, request=_api(key), stage=stage))
    for key, histogram in copied(lambda: list(times.throttle.items())):
        yield m.THROTTLE_TIME, summary_samples([histogram], label_text(broker=broker, request=_api(key)))


def _waiting(node: Node, pace: Pace) -> Iterator[tuple[Family, Samples]]:
    kinds = Counter({"Produce": 0, "Fetch": 0, "Other": 0})
    for operations in copied(node.context.delayed_requests):
        for operation in copied(lambda operations=operations: list(operations.values())):  # type: ignore[misc]
            kinds[{"produce": "Produce", "fetch": "Fetch"}.get(operation.name, "Other")] += 1
        pace.step()
    me = node.context.broker_id
    samples = [("", label_text(broker=me, delayedOperation=kind), float(number)) for kind, number in kinds.items()]
    yield m.PURGATORY, [*samples, ("", label_text(broker=me, delayedOperation="all"), node.context.delayed.count)]


def _directories(node: Node) -> Iterator[tuple[Family, Samples]]:
    context = node.context
    me = context.broker_id
    failed = sum(directory.failed is not None for directory in context.directories)
    yield m.OFFLINE_DIRECTORIES, _one(failed, label_text(broker=me))
    for root, space in copied(lambda: list(context.space.items())):
        labels = label_text(broker=me, directory=root)
        yield m.DISK_FREE, _one(space.free_bytes, labels)
        yield m.DISK_TOTAL, _one(space.total_bytes, labels)
        yield m.DISK_LOW, _one(int(space.low), labels)


def _schemas(node: Node, own: str) -> Iterator[tuple[Family, Samples]]:
    schemas = node.schemas
    results = {"registered": schemas.found, "unknown": schemas.not_found, "lost": schemas.lost}
    yield m.SCHEMA_LOOKUPS, [("", label_text(broker=node.context.broker_id, result=name), number) for name, number in results.items()]
    yield m.SCHEMA_REFUSED, _one(schemas.refused_batches, own)
    yield m.SCHEMA_OUTAGE, _one(int(bool(schemas.outage)), own)


def _state(node: Node, own: str, *, stopping: bool) -> Iterator[tuple[Family, Samples]]:
    context = node.context
    state = STOPPING if context.stopping else SHUTTING_DOWN if stopping else RUNNING if context.epoch is not None else STARTING
    yield m.BROKER_STATE, _one(state, own)
    yield m.STORE_CONNECTED, _one(int(context.connected), own)
    states: Counter[str] = Counter()
    for shard in copied(lambda: list(node.transactions.shards.values())):
        states.update(one.state.name for one in copied(lambda shard=shard: list(shard.machine.by_id.values())))  # type: ignore[misc]
    yield m.TRANSACTIONS, [("", label_text(broker=context.broker_id, state=name), number) for name, number in states.items()]


def _connections(broker: ObservedBroker) -> Iterator[tuple[Family, Samples]]:
    me = broker.node.context.broker_id
    yield (
        m.CONNECTIONS,
        [
            ("", label_text(broker=me, listener=name, networkProcessor="0"), listener.connection_count)
            for name, listener in broker.listeners.items()
        ],
    )


def _quotas(node: Node) -> Iterator[tuple[Family, Samples]]:
    quotas = node.context.quotas
    if not quotas.active:
        return
    usages = copied(lambda: list(quotas.metrics()))
    yield (
        m.QUOTA_RATE,
        [
            ("", label_text(broker=node.context.broker_id, quota=one.type, user=one.user, client_id=one.client_id), round(rate, 3))
            for one in usages
            for name, rate in one.values.items()
            if name.endswith("rate") or name == "request-time"
        ],
    )


def _proc_io() -> tuple[int, int] | None:
    """Bytes read from and written to disks; None on a system without the figures."""
    try:
        with open("/proc/self/io") as file:
            found = dict(line.strip().split(": ") for line in file)
        return int(found["read_bytes"]), int(found["write_bytes"])
    except (OSError, ValueError, KeyError):
        return None


def _resident_bytes() -> int | None:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
