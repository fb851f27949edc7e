"""From what the user asked for to offsets: which partitions, from where, to where. Decides over a `Catalog`; does no I/O of its own.

What may fail: a topic that is not there, offsets that the log does not hold (any more), a time after the last record. Whether data that is
gone stops the query or is passed over is for `loss` to say; every message says which partition, what was asked for and what there is.

    log of one partition      [earliest .............. latest)
    asked to start at 3       ^3 < earliest: records were deleted by retention before they were read = data loss
    asked to start at 900                              latest < 900: the topic was deleted and created again = data loss
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ottla.base.ids import TopicPartition
from ottla.base.options import suggestion
from ottla.spark.source.data_loss import DataLoss, Loss, Losses
from ottla.spark.source.offset_ranges import EARLIEST, LATEST
from ottla.spark.source.options import Position, SourceOptions, Subscription

Offsets = dict[TopicPartition, int]


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

    def committed(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int | None]:
        """The offsets that a consumer group has committed; None where it has not."""


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
            near = suggestion(name, catalog.topics())
            raise NoSuchData(f"topic {name} does not exist{f'{near} Else' if near else ';'} create it with: ottla topic create {name}")
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


def starting(catalog: Catalog, options: SourceOptions, losses: Losses | None = None) -> Offsets:
    """Where a new query begins in each partition. Raises: NoSuchData, DataLoss."""
    partitions = subscribed(catalog, options.subscription)
    position = options.starting
    if position.committed:
        return _held(catalog, _committed(catalog, options, partitions), losses or Losses(options.on_data_loss))
    found = _resolve(catalog, position, partitions, name="startingOffsets")
    unmatched = [tp for tp in partitions if found[tp] is None]
    if unmatched and options.unmatched_start == "error":
        raise NoSuchData(
            f"no record of {', '.join(map(str, unmatched))} is as young as the starting time; set an earlier time, "
            "or startingOffsetsByTimestampStrategy to latest to begin at the end"
        )
    ends = catalog.end_offsets(unmatched, LATEST) if unmatched else {}
    offsets = {tp: ends[tp] if offset is None else offset for tp, offset in found.items()}
    return _held(catalog, offsets, losses or Losses(options.on_data_loss)) if position.offsets else offsets


def _committed(catalog: Catalog, options: SourceOptions, partitions: Sequence[TopicPartition]) -> Offsets:
    """Where the group stands, or where partitions begin that it has not read. Raises: NoSuchData."""
    assert options.group is not None, "the options were refused without a group"
    found = catalog.committed(options.group, partitions)
    without = [tp for tp in partitions if found.get(tp) is None]
    if without and options.starting.special is None:
        raise NoSuchData(
            f"consumer group {options.group} has committed no offset of {', '.join(map(str, without))}; set kafka.auto.offset.reset to "
            "earliest or latest to begin there"
        )
    begun = catalog.end_offsets(without, options.starting.special) if without and options.starting.special is not None else {}
    return {tp: begun[tp] if tp in begun else found[tp] or 0 for tp in partitions}


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


@dataclass(frozen=True, slots=True)
class Carried:
    """Where the next batch of a stream begins."""

    begin: Offsets
    #: Partitions whose log is not the one that was read, or is shorter: the next batch does no more than to set them to their begin, so
    #: that the checkpoint has it.
    anew: frozenset[TopicPartition]


def carried_over(
    catalog: Catalog,
    options: SourceOptions,
    known: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    losses: Losses | None = None,
    topics: Mapping[str, str | None] | None = None,
) -> Carried:
    """Where the next batch of a stream begins that has read up to `known`, for each partition of `latest`.

    `topics`: those known to be the ones that were read (None), and those known to have been deleted and created again (in words).

    A partition that vanished or shrunk is data loss. If that is allowed, one that vanished is left out; one that was cut goes on at its
    end; one whose topic was created again, or may have been, begins with what there is now.

    Raises: DataLoss.
    """
    tell = (losses or Losses(options.on_data_loss)).tell
    identity = topics or {}
    created = {topic: words for topic, words in identity.items() if words is not None}
    anew = {tp for tp in known if tp in latest and (tp.topic in created or latest[tp] < known[tp])}
    earliest = catalog.end_offsets(sorted(anew), EARLIEST) if anew else {}
    begin = {tp: offset for tp, offset in known.items() if tp in latest}
    begin |= {tp: earliest[tp] if identity.get(tp.topic, "?") else latest[tp] for tp in anew}
    for tp in sorted(known):
        place = (tp.topic, tp.partition, known[tp])
        if tp not in latest:
            gone = f"{tp} was read up to {known[tp]} and is gone; its topic was deleted"
            tell(Loss("topic gone", *place, None, None, gone))
        elif tp.topic in created:
            again = f"{tp} was read up to {known[tp]}, and its topic was deleted and created again {created[tp.topic]}"
            tell(Loss("recreated", *place, None, earliest[tp], again))
        elif latest[tp] < known[tp]:
            why = "it was cut" if tp.topic in identity else "its topic was deleted and created again, or it was cut"
            cut = f"{tp} was read up to {known[tp]} but now ends at {latest[tp]}; {why}"
            tell(Loss("truncated", tp.topic, tp.partition, latest[tp], known[tp], earliest[tp], cut))
    appeared = first_seen(catalog, options, sorted(set(latest) - set(known)), losses)
    return Carried({**begin, **appeared}, frozenset(anew))


def first_seen(catalog: Catalog, options: SourceOptions, partitions: Sequence[TopicPartition], losses: Losses | None = None) -> Offsets:
    """Where partitions that appeared after the query started are read from: their beginning, so that nothing is missed."""
    earliest = catalog.end_offsets(partitions, EARLIEST) if partitions else {}
    for tp, offset in earliest.items():
        if offset > 0:
            sentence = f"the new partition {tp} begins at {offset}; what came before was deleted before it could be read"
            (losses or Losses(options.on_data_loss)).tell(Loss("deleted", tp.topic, tp.partition, 0, offset, offset, sentence))
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


def _held(catalog: Catalog, offsets: Offsets, losses: Losses) -> Offsets:
    """`offsets`, moved into what the logs hold."""
    partitions = list(offsets)
    earliest, latest = catalog.end_offsets(partitions, EARLIEST), catalog.end_offsets(partitions, LATEST)
    held = {}
    for tp, offset in offsets.items():
        first, end = earliest[tp], latest[tp]
        if offset < first:
            sentence = f"{tp} should be read from {offset} but begins at {first}"
            losses.tell(Loss("deleted", tp.topic, tp.partition, offset, first, first, sentence))
        elif offset > end:
            sentence = f"{tp} should be read from {offset} but ends at {end}"
            losses.tell(Loss("truncated", tp.topic, tp.partition, end, offset, first, sentence))
        held[tp] = min(max(offset, first), end)
    return held


__all__ = [
    "Carried",
    "Catalog",
    "DataLoss",
    "NoSuchData",
    "Offsets",
    "carried_over",
    "ending",
    "first_seen",
    "newest",
    "starting",
    "subscribed",
]
