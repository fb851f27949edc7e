"""Resolves the options of a query to partitions and offsets. Works on a `Catalog`; does no I/O itself.

What may fail: a topic does not exist, the log does not hold an offset (any more), a time is after the last record. `data_loss` decides
whether missing records fail the query. Each message names the partition, the requested offset and the existing ones.

    log of one partition      [earliest .............. latest)
    start at 3 requested      ^3 < earliest: retention deleted records before they were read = data loss
    start at 900 requested                             latest < 900: the topic was deleted and created again = data loss
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ottla.base.ids import TopicPartition
from ottla.base.options import suggestion
from ottla.spark.source.data_loss import DataLossPolicy, Loss, logger
from ottla.spark.source.offset_ranges import EARLIEST, LATEST
from ottla.spark.source.options import Position, SourceOptions, Subscription
from ottla.wire.errors import KafkaError

Offsets = dict[TopicPartition, int]
T = TypeVar("T")


class NoSuchData(ValueError):
    """Requested topics, partitions or times that do not exist."""


class Catalog(Protocol):
    """Queries about the topics of a cluster."""

    def topics(self, names: Sequence[str] | None = None) -> dict[str, int]:
        """The partition counts of the existing topics: of `names`, or of all but internal ones."""

    def end_offsets(self, partitions: Sequence[TopicPartition], at: int) -> Offsets:
        """EARLIEST or LATEST offset of each partition; LATEST is the end of what a consumer may read."""

    def offsets_at(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first offset whose timestamp is at or after the time; None if there is none."""

    def committed(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int | None]:
        """The committed offsets of a consumer group; None for partitions without one."""


class RetryingCatalog:
    """A catalog that repeats a query after a retriable error (fetchOffset.numRetries, fetchOffset.retryIntervalMs).

    The client retries by its own settings first; this adds attempts after those. Methods raise the last error.
    """

    def __init__(self, catalog: Catalog, retries: int, interval_ms: int, sleep: Callable[[float], None] = time.sleep) -> None:
        self._catalog = catalog
        self._retries = retries
        self._interval_s = interval_ms / 1000
        self._sleep = sleep

    def topics(self, names: Sequence[str] | None = None) -> dict[str, int]:
        return self._retried(lambda: self._catalog.topics(names))

    def end_offsets(self, partitions: Sequence[TopicPartition], at: int) -> Offsets:
        return self._retried(lambda: self._catalog.end_offsets(partitions, at))

    def offsets_at(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return self._retried(lambda: self._catalog.offsets_at(times_ms))

    def committed(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int | None]:
        return self._retried(lambda: self._catalog.committed(group, partitions))

    def _retried(self, query: Callable[[], T]) -> T:
        retries_left = self._retries
        while True:
            try:
                return query()
            except KafkaError as error:
                if not retries_left or not error.retriable:
                    raise
                logger.warning("cannot fetch offsets, retrying in %d ms: %s", self._interval_s * 1000, error)
            retries_left -= 1
            self._sleep(self._interval_s)


def subscribed_partitions(catalog: Catalog, subscription: Subscription, *, strict: bool = True) -> list[TopicPartition]:
    """The existing partitions of a subscription, in order.

    Raises: NoSuchData if `strict` and a named topic or partition does not exist.
    """
    named = sorted({*subscription.topics, *(tp.topic for tp in subscription.partitions)})
    topics = catalog.topics(named or None)
    if not strict:
        return [tp for tp in _matching(topics, subscription) if tp.partition < topics.get(tp.topic, 0)]
    for name in named:
        if name not in topics:
            near = suggestion(name, catalog.topics())
            raise NoSuchData(f"topic {name} does not exist{f'{near} Else' if near else ';'} create it with: ottla topic create {name}")
    for tp in subscription.partitions:
        if tp.partition >= topics[tp.topic]:
            raise NoSuchData(f"topic {tp.topic} has {topics[tp.topic]} partitions, so there is no {tp}")
    return _matching(topics, subscription)


def _matching(topics: Mapping[str, int], subscription: Subscription) -> list[TopicPartition]:
    if subscription.kind == "assign":
        return list(subscription.partitions)
    names: Iterable[str] = subscription.topics
    if subscription.kind == "subscribePattern":
        names = [name for name in topics if re.fullmatch(subscription.pattern, name)]
    return [TopicPartition(name, number) for name in sorted(names) for number in range(topics.get(name, 0))]


def resolve_start(catalog: Catalog, options: SourceOptions, loss_policy: DataLossPolicy | None = None) -> Offsets:
    """The starting offsets of a new query. Raises: NoSuchData, DataLoss."""
    partitions = subscribed_partitions(catalog, options.subscription)
    position = options.starting
    if position.committed:
        return _clamped(catalog, _committed(catalog, options, partitions), loss_policy or DataLossPolicy(options.on_data_loss))
    found = _resolve(catalog, position, partitions, name="startingOffsets")
    unmatched = [tp for tp in partitions if found[tp] is None]
    if unmatched and options.unmatched_start == "error":
        raise NoSuchData(
            f"{', '.join(map(str, unmatched))}: no record at or after the starting time; set an earlier time, "
            "or set startingOffsetsByTimestampStrategy to latest to start at the end"
        )
    ends = catalog.end_offsets(unmatched, LATEST) if unmatched else {}
    offsets = {tp: ends[tp] if offset is None else offset for tp, offset in found.items()}
    return _clamped(catalog, offsets, loss_policy or DataLossPolicy(options.on_data_loss)) if position.offsets else offsets


def _committed(catalog: Catalog, options: SourceOptions, partitions: Sequence[TopicPartition]) -> Offsets:
    """The group's committed offsets, or the reset position of partitions without one. Raises: NoSuchData."""
    assert options.group is not None, "the options are rejected without a group"
    found = catalog.committed(options.group, partitions)
    without = [tp for tp in partitions if found.get(tp) is None]
    if without and options.starting.special is None:
        raise NoSuchData(
            f"consumer group {options.group} has no committed offset for {', '.join(map(str, without))}; set kafka.auto.offset.reset to "
            "earliest or latest to start there"
        )
    reset = catalog.end_offsets(without, options.starting.special) if without and options.starting.special is not None else {}
    return {tp: reset[tp] if tp in reset else found[tp] or 0 for tp in partitions}


def resolve_end(catalog: Catalog, options: SourceOptions) -> Offsets:
    """The ending offsets of a batch query. Raises: NoSuchData."""
    partitions = subscribed_partitions(catalog, options.subscription)
    found = _resolve(catalog, options.ending, partitions, name="endingOffsets")
    latest = catalog.end_offsets(partitions, LATEST)
    for tp, offset in found.items():
        if offset is not None and offset > latest[tp]:
            raise NoSuchData(f"endingOffsets: {tp} ends at {latest[tp]}, so it cannot be read up to {offset}")
    return {tp: latest[tp] if offset is None else offset for tp, offset in found.items()}


def latest_offsets(catalog: Catalog, options: SourceOptions) -> Offsets:
    """The end offsets of the subscribed partitions that exist now."""
    return catalog.end_offsets(subscribed_partitions(catalog, options.subscription, strict=False), LATEST)


@dataclass(frozen=True, slots=True)
class ResumeOffsets:
    """Where the next batch of a stream starts."""

    begin: Offsets
    #: Partitions whose log was replaced or truncated. The next batch reads nothing of them: it writes their new start to the checkpoint.
    reset: frozenset[TopicPartition]


def resume_offsets(
    catalog: Catalog,
    options: SourceOptions,
    known: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    loss_policy: DataLossPolicy | None = None,
    topics: Mapping[str, str | None] | None = None,
) -> ResumeOffsets:
    """Where the next batch of a stream starts that has read up to `known`, for each partition of `latest`.

    `topics`: None for a topic with the same id as before, a description for one that was recreated. Topics without ids are absent.

    A partition that vanished or shrank is data loss. If that is allowed:

        vanished                             left out
        truncated, same topic id             continues at its end
        recreated, or truncated without ids  restarts at its log start offset

    Raises: DataLoss.
    """
    policy = loss_policy or DataLossPolicy(options.on_data_loss)
    identity = topics or {}
    recreated = {topic: description for topic, description in identity.items() if description is not None}
    reset = {tp for tp in known if tp in latest and (tp.topic in recreated or latest[tp] < known[tp])}
    earliest = catalog.end_offsets(sorted(reset), EARLIEST) if reset else {}
    begin = {tp: offset for tp, offset in known.items() if tp in latest}
    begin |= {tp: earliest[tp] if identity.get(tp.topic, "?") else latest[tp] for tp in reset}
    for tp in sorted(known):
        position = (tp.topic, tp.partition, known[tp])
        if tp not in latest:
            sentence = f"{tp} was read up to {known[tp]} and is gone; its topic was deleted"
            policy.handle(Loss("topic gone", *position, None, None, sentence))
        elif tp.topic in recreated:
            sentence = f"{tp} was read up to {known[tp]}, and its topic was deleted and created again {recreated[tp.topic]}"
            policy.handle(Loss("recreated", *position, None, earliest[tp], sentence))
        elif latest[tp] < known[tp]:
            cause = "it was truncated" if tp.topic in identity else "its topic was deleted and created again, or it was truncated"
            sentence = f"{tp} was read up to {known[tp]} but now ends at {latest[tp]}; {cause}"
            policy.handle(Loss("truncated", tp.topic, tp.partition, latest[tp], known[tp], earliest[tp], sentence))
    added = new_partition_offsets(catalog, options, sorted(set(latest) - set(known)), loss_policy)
    return ResumeOffsets({**begin, **added}, frozenset(reset))


def new_partition_offsets(
    catalog: Catalog, options: SourceOptions, partitions: Sequence[TopicPartition], loss_policy: DataLossPolicy | None = None
) -> Offsets:
    """The starting offsets of partitions that were added after the query started: their log start, so that no record is missed."""
    earliest = catalog.end_offsets(partitions, EARLIEST) if partitions else {}
    for tp, offset in earliest.items():
        if offset > 0:
            sentence = f"the new partition {tp} begins at {offset}; records before it were deleted before they could be read"
            (loss_policy or DataLossPolicy(options.on_data_loss)).handle(
                Loss("deleted", tp.topic, tp.partition, 0, offset, offset, sentence)
            )
    return earliest


def _resolve(catalog: Catalog, position: Position, partitions: Sequence[TopicPartition], *, name: str) -> dict[TopicPartition, int | None]:
    """Offsets for `partitions`; None if no record is at or after the time."""
    if position.timestamp_ms is not None:
        return catalog.offsets_at(dict.fromkeys(partitions, position.timestamp_ms))
    if position.timestamps_ms:
        _require_exact_partitions(name + "ByTimestamp", position.timestamps_ms, partitions)
        return catalog.offsets_at(position.timestamps_ms)
    if position.special is not None:
        return dict(catalog.end_offsets(partitions, position.special))
    _require_exact_partitions(name, position.offsets, partitions)
    found: dict[TopicPartition, int | None] = dict(position.offsets)
    for special in (EARLIEST, LATEST):
        chosen = [tp for tp, offset in position.offsets.items() if offset == special]
        if chosen:
            found.update(catalog.end_offsets(chosen, special))
    return found


def _require_exact_partitions(name: str, offsets: Mapping[TopicPartition, int], partitions: Sequence[TopicPartition]) -> None:
    missing = sorted(set(partitions) - set(offsets))
    surplus = sorted(set(offsets) - set(partitions))
    if missing:
        raise NoSuchData(f"{name} must name every subscribed partition; {', '.join(map(str, missing))} is missing (-2 earliest, -1 latest)")
    if surplus:
        raise NoSuchData(f"{name} names {', '.join(map(str, surplus))}, which does not exist or is not subscribed")


def _clamped(catalog: Catalog, offsets: Offsets, loss_policy: DataLossPolicy) -> Offsets:
    """`offsets`, limited to what the logs hold. Raises: DataLoss."""
    partitions = list(offsets)
    earliest, latest = catalog.end_offsets(partitions, EARLIEST), catalog.end_offsets(partitions, LATEST)
    clamped = {}
    for tp, offset in offsets.items():
        first, end = earliest[tp], latest[tp]
        if offset < first:
            sentence = f"{tp} should be read from {offset} but begins at {first}"
            loss_policy.handle(Loss("deleted", tp.topic, tp.partition, offset, first, first, sentence))
        elif offset > end:
            sentence = f"{tp} should be read from {offset} but ends at {end}"
            loss_policy.handle(Loss("truncated", tp.topic, tp.partition, end, offset, first, sentence))
        clamped[tp] = min(max(offset, first), end)
    return clamped
