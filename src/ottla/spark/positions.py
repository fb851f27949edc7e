"""From what the user asked for to offsets: which partitions, from where, to where. Decides over a `Catalog`; does no I/O of its own.

What may fail: a topic that is not there, offsets that the log does not hold (any more), a time after the last record. Whether data that is
gone stops the query or is skipped is `failOnDataLoss`; every message says which partition, what was asked for and what there is.

    log of one partition      [earliest .............. latest)
    asked to start at 3       ^3 < earliest: records were deleted by retention before they were read = data loss
    asked to start at 900                              latest < 900: the topic was deleted and created again = data loss
"""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from ottla.base.ids import TopicPartition
from ottla.base.options import suggestion
from ottla.spark.offsets import EARLIEST, LATEST
from ottla.spark.options import Position, SourceOptions, Subscription

logger = logging.getLogger("ottla.spark")

Offsets = dict[TopicPartition, int]


class DataLoss(RuntimeError):
    """Records that should have been read are gone, or were never there."""


class NoSuchData(ValueError):
    """Topics, partitions or times that were asked for and do not exist."""


class Catalog(Protocol):
    """What can be asked about the topics of a cluster."""

    def topics(self, names: Sequence[str] | None = None) -> dict[str, int]:
        """The topics that exist, of those named or of all but internal ones, with their numbers of partitions."""

    def end_offsets(self, partitions: Sequence[TopicPartition], at: int) -> Offsets:
        """EARLIEST or LATEST offset of each partition; LATEST is the end of what a consumer may see."""

    def offsets_at(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first offset whose record is at least as young as its time; None where there is none."""


def subscribed(catalog: Catalog, subscription: Subscription, *, strict: bool = True) -> list[TopicPartition]:
    """The partitions that are read and exist, in order.

    Raises: NoSuchData when `strict` and a topic or partition that was named does not exist.
    """
    named = sorted({*subscription.topics, *(tp.topic for tp in subscription.partitions)})
    topics = catalog.topics(named or None)
    if not strict:
        return [tp for tp in _named(topics, subscription) if tp.partition < topics.get(tp.topic, 0)]
    for name in named:
        if name not in topics:
            raise NoSuchData(f"topic {name} does not exist{suggestion(name, catalog.topics())}")
    for tp in subscription.partitions:
        if tp.partition >= topics[tp.topic]:
            raise NoSuchData(f"topic {tp.topic} has {topics[tp.topic]} partitions, so there is no {tp}")
    return _named(topics, subscription)


def _named(topics: Mapping[str, int], subscription: Subscription) -> list[TopicPartition]:
    if subscription.kind == "assign":
        return list(subscription.partitions)
    names: Iterable[str] = subscription.topics
    if subscription.kind == "subscribePattern":
        names = [name for name in topics if re.fullmatch(subscription.pattern, name)]
    return [TopicPartition(name, number) for name in sorted(names) for number in range(topics.get(name, 0))]


def starting(catalog: Catalog, options: SourceOptions) -> Offsets:
    """Where a new query begins in each partition. Raises: NoSuchData, DataLoss."""
    partitions = subscribed(catalog, options.subscription)
    found = _resolve(catalog, options.starting, partitions, name="startingOffsets")
    unmatched = [tp for tp in partitions if found[tp] is None]
    if unmatched and options.unmatched_start == "error":
        raise NoSuchData(
            f"no record of {', '.join(map(str, unmatched))} is as young as the starting time; set an earlier time, "
            "or startingOffsetsByTimestampStrategy to latest to begin at the end"
        )
    ends = catalog.end_offsets(unmatched, LATEST) if unmatched else {}
    offsets = {tp: ends[tp] if offset is None else offset for tp, offset in found.items()}
    return _held(catalog, offsets, options) if options.starting.offsets else offsets


def ending(catalog: Catalog, options: SourceOptions) -> Offsets:
    """Where a batch query ends in each partition. Raises: NoSuchData."""
    partitions = subscribed(catalog, options.subscription)
    found = _resolve(catalog, options.ending, partitions, name="endingOffsets")
    latest = catalog.end_offsets(partitions, LATEST)
    for tp, offset in found.items():
        if offset is not None and offset > latest[tp]:
            raise NoSuchData(f"endingOffsets: {tp} ends at {latest[tp]}, so it cannot be read up to {offset}")
    return {tp: latest[tp] if offset is None else offset for tp, offset in found.items()}


def newest(catalog: Catalog, options: SourceOptions) -> Offsets:
    """The end of each partition that is read and exists now."""
    return catalog.end_offsets(subscribed(catalog, options.subscription, strict=False), LATEST)


def carried_over(
    catalog: Catalog, options: SourceOptions, known: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]
) -> Offsets:
    """Where the next batch of a stream begins that has read up to `known`, for each partition of `latest`.

    A partition that vanished or shrunk is data loss; if that is allowed it is left out, or begins again with what there is now.

    Raises: DataLoss.
    """
    for tp in known:
        if tp not in latest:
            _lost(options, f"{tp} was read up to {known[tp]} and is gone; its topic was deleted")
        elif latest[tp] < known[tp]:
            _lost(options, f"{tp} was read up to {known[tp]} but now ends at {latest[tp]}; its topic was deleted and created again")
    shrunk = [tp for tp in known if tp in latest and latest[tp] < known[tp]]
    begin = {tp: offset for tp, offset in known.items() if tp in latest}
    begin.update(catalog.end_offsets(shrunk, EARLIEST) if shrunk else {})
    return {**begin, **first_seen(catalog, options, sorted(set(latest) - set(known)))}


def first_seen(catalog: Catalog, options: SourceOptions, partitions: Sequence[TopicPartition]) -> Offsets:
    """Where partitions that appeared after the query started are read from: their beginning, so that nothing is missed."""
    earliest = catalog.end_offsets(partitions, EARLIEST) if partitions else {}
    for tp, offset in earliest.items():
        if offset > 0:
            _lost(options, f"the new partition {tp} begins at {offset}; what came before was deleted before it could be read")
    return earliest


def _resolve(catalog: Catalog, position: Position, partitions: Sequence[TopicPartition], *, name: str) -> dict[TopicPartition, int | None]:
    """Offsets for `partitions`; None where a time has no record."""
    if position.timestamp_ms is not None:
        return catalog.offsets_at(dict.fromkeys(partitions, position.timestamp_ms))
    if position.timestamps_ms:
        _refuse_other_partitions(name + "ByTimestamp", position.timestamps_ms, partitions)
        return catalog.offsets_at(position.timestamps_ms)
    if position.special is not None:
        return dict(catalog.end_offsets(partitions, position.special))
    _refuse_other_partitions(name, position.offsets, partitions)
    found: dict[TopicPartition, int | None] = dict(position.offsets)
    for special in (EARLIEST, LATEST):
        chosen = [tp for tp, offset in position.offsets.items() if offset == special]
        if chosen:
            found.update(catalog.end_offsets(chosen, special))
    return found


def _refuse_other_partitions(name: str, given: Mapping[TopicPartition, int], partitions: Sequence[TopicPartition]) -> None:
    missing = sorted(set(partitions) - set(given))
    surplus = sorted(set(given) - set(partitions))
    if missing:
        raise NoSuchData(
            f"{name} must name every partition that is read; {', '.join(map(str, missing))} is missing (-2 earliest, -1 latest)"
        )
    if surplus:
        raise NoSuchData(f"{name} names {', '.join(map(str, surplus))}, which does not exist or is not read")


def _held(catalog: Catalog, offsets: Offsets, options: SourceOptions) -> Offsets:
    """`offsets`, moved into what the logs hold."""
    partitions = list(offsets)
    earliest, latest = catalog.end_offsets(partitions, EARLIEST), catalog.end_offsets(partitions, LATEST)
    held = {}
    for tp, offset in offsets.items():
        if offset < earliest[tp]:
            _lost(options, f"{tp} should be read from {offset} but begins at {earliest[tp]}")
        elif offset > latest[tp]:
            _lost(options, f"{tp} should be read from {offset} but ends at {latest[tp]}")
        held[tp] = min(max(offset, earliest[tp]), latest[tp])
    return held


def _lost(options: SourceOptions, what: str) -> None:
    if options.fail_on_data_loss:
        raise DataLoss(f"{what}. Set failOnDataLoss to false to go on with what there is, or start with a new checkpoint")
    logger.warning("data loss: %s", what)
