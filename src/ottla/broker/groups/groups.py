"""All groups and offsets of one shard of ``__consumer_offsets``.

::

    OffsetCommit ... JoinGroup ... DeleteGroups        records of the partition
                  │                                        │
                  ▼                                        ▼
    a method here, which finds the group ──▶ Group     apply(key, value) ──▶ APPLY[type of key](groups, key, value)
                                               │                                   ▲
                                               └── shard.write(group id, records) ─┘

How to add another kind of group:

1. Declare its records, each key and value a message, and add them to ``records.TYPES``.
2. Write a function ``(groups, key, value)`` for each type of key and add it to ``APPLY``. It finds or adds its group in ``groups.by_id``,
   which determines the kind of a group. A record that converts a group calls ``close()`` on the old object and replaces it; offsets are not
   affected.
3. Its group object implements ``Group`` (``group.py``). Through ``groups.shard`` it gets time, options, the image, timers (``after``,
   ``cancel``) and ``write``.
4. Its API handlers take the shard from ``node.groups.shard_of(group_id)`` and respond through ``shard.answer`` (at once) or
   ``shard.later`` (later, with a ``Reply``), as in ``apis/k12_heartbeat.py`` and ``apis/k11_join_group.py``.
5. ``Group.loaded`` is called after the log was loaded, ``Group.topic_changed`` when topics change.

A conversion is one ``write``: tombstones of the old kind (``group.tombstones()``) and records of the new one in one batch, so that a crash
leaves one or the other. ``ClassicGroup.take`` makes a classic group from its record.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ottla.base.units import KiB, MiB
from ottla.broker.context import BrokerContext
from ottla.broker.controller.controller import Controller
from ottla.broker.coordinator import Coordinator, Record, Reply, Shard, ShardState
from ottla.broker.groups import offsets as offsets_of
from ottla.broker.groups.classic.group import ClassicGroup
from ottla.broker.groups.consumer import service
from ottla.broker.groups.consumer.changes import GroupSettings
from ottla.broker.groups.consumer.record_schemas import CONSUMER_KEYS
from ottla.broker.groups.consumer.service import ImageTopics
from ottla.broker.groups.group import Group, GroupClient
from ottla.broker.groups.memory_limits import WARN_INTERVAL_MS, Footprint
from ottla.broker.groups.offsets import Offsets
from ottla.broker.groups.pending_offsets import Place
from ottla.broker.groups.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_record,
    encode_record,
)
from ottla.broker.metadata.configs import BrokerOptions, Settings
from ottla.broker.replica.replicas import Replicas
from ottla.records.compression import Codec
from ottla.wire import errors
from ottla.wire.errors import KafkaError

OFFSETS_TOPIC = "__consumer_offsets"
#: Tombstones in one batch: half of max.message.bytes.
FORGOTTEN_BYTES = 512 * KiB
#: Offsets checked for expiry in one step, and offsets of a deleted topic deleted in one: half a millisecond, with a batch.
LOOKED_AT_ONCE = 200
#: What a batch weighs, in offsets.
BATCH_WEIGHT = 50
#: Upper bound of a tombstone without its group id.
TOMBSTONE_BYTES = 300


class Groups:
    """The state machine of a shard."""

    def __init__(self, shard: "Shard[Groups]") -> None:
        self.shard = shard
        #: Groups of all kinds by id.
        self.by_id: dict[str, Group] = {}
        self.offsets = Offsets()
        #: Memory of groups without offsets, see ``memory_limits.py``; and the time of the last logged refusal.
        self.footprint = Footprint()
        self.warned_ms = -WARN_INTERVAL_MS
        #: Topics as consumer groups use them.
        self.topics = ImageTopics(shard.image)
        #: Deleted topics with offsets, and the rest of the work. No offset is added: the topic does not exist.
        self._forgetting: dict[str, Iterator[None]] = {}

    # For the coordinator.

    def encode(self, key: Any, value: Any) -> tuple[bytes, bytes | None]:
        return encode_record(key, value)

    def decode(self, key: bytes, value: bytes | None) -> Record | None:
        return decode_record(key, value)

    def apply(self, key: Any, value: Any) -> None:
        APPLY[type(key)](self, key, value)

    def apply_transactional(self, key: Any, value: Any, *, producer_id: int, record_offset: int) -> None:
        """Offsets of a transaction are pending until its marker. Other records count at once, as in Kafka."""
        if isinstance(key, OffsetCommitKey) and value is not None:
            _add_group_of(self, key)
            self.offsets.apply_pending(key, value, producer_id=producer_id, record_offset=record_offset)
        else:
            self.apply(key, value)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        self.offsets.end_transaction(producer_id, commit=commit)

    def loaded(self) -> None:
        for group in list(self.by_id.values()):
            group.loaded()
        for topic in self.offsets.topics().difference(self.shard.image.topics):
            # Deleted while no coordinator was active.
            self._forget_topic(topic)
        self._check_expiry_later()

    @property
    def loading(self) -> bool:
        return self.shard.state is ShardState.LOADING

    def terms(self, group_id: str) -> GroupSettings:
        """Settings of a consumer group."""
        return service.terms(self.shard, self.topics, group_id)

    # Requests of the classic protocol.

    def join(self, request: Any, client: GroupClient, reply: Reply) -> None:
        """JoinGroup. Raises: KafkaError."""
        group = self.by_id.get(request.group_id)
        if group is None:
            if request.member_id:
                raise errors.UnknownMemberId(f"there is no group {request.group_id!r}")
            made = group = self.by_id[request.group_id] = ClassicGroup(self, request.group_id)
            try:
                made.join(request, client, reply)
            finally:
                self.forget_unused(made)
        else:
            group.join(request, client, reply)

    def sync(self, request: Any, reply: Reply) -> None:
        """SyncGroup. Raises: KafkaError."""
        self._member_of(request.group_id).sync(request, reply)

    def heartbeat(self, request: Any) -> None:
        """Heartbeat. Raises: KafkaError."""
        self._member_of(request.group_id).heartbeat(request)

    def leave(self, group_id: str, members: list[Any]) -> list[Any]:
        """LeaveGroup: a response for each member. Raises: UnknownMemberId without a group."""
        return self._member_of(group_id).leave(members)

    def _member_of(self, group_id: str) -> Group:
        group = self.by_id.get(group_id)
        if group is None:
            raise errors.UnknownMemberId(f"there is no group {group_id!r}")
        return group

    # Groups.

    def find(self, group_id: str) -> Group:
        """Raises: GroupIdNotFound."""
        group = self.by_id.get(group_id)
        if group is None:
            raise errors.GroupIdNotFound(f"there is no group {group_id!r}")
        return group

    def check_delete(self, group_id: str) -> None:
        """Raises: GroupIdNotFound, NonEmptyGroup."""
        self.find(group_id).check_delete()

    def delete(self, group_id: str, places: Sequence[Place]) -> None:
        """Deletes a group with its last offsets. Raises: GroupIdNotFound, NonEmptyGroup, and the errors of a write."""
        group = self.find(group_id)
        group.check_delete()
        last = set(places)
        if not last.issuperset(self.offsets.places(group_id)):
            raise errors.NonEmptyGroup(f"offsets of group {group_id!r} were committed while its offsets were deleted")
        self._forget(group_id, [*self.offsets.tombstones(group_id, places), *group.tombstones()])

    def delete_offsets(self, group_id: str, places: Iterable[Place]) -> None:
        """Raises: the errors of a write."""
        self._forget(group_id, self.offsets.tombstones(group_id, places))

    def forget_unused(self, group: Group) -> None:
        """Drops a group that was never persisted."""
        unused = isinstance(group, ClassicGroup) and group.unused
        if unused and not self.offsets.holds(group.group_id) and self.by_id.get(group.group_id) is group:
            del self.by_id[group.group_id]
            group.footprint.clear()

    # Time and topics.

    def topic_changed(self, topic: str) -> None:
        """A topic was created, expanded or deleted."""
        self.topics.version += 1
        if topic not in self.shard.image.topics:
            self._forget_topic(topic)
        elif topic in self._forgetting:
            # It was created again. Offsets of the new topic come later than this step.
            for _ in self._forgetting.pop(topic):
                pass
        for group in list(self.by_id.values()):
            group.topic_changed(topic)

    def _forget_topic(self, topic: str) -> None:
        """Deletes offsets of a deleted topic."""
        work = self._forgetting[topic] = self._forget_in_parts(topic)
        self._go_on_forgetting(topic, work)

    def _go_on_forgetting(self, topic: str, work: Iterator[None]) -> None:
        if self._forgetting.get(topic) is not work:
            return
        try:
            next(work)
        except StopIteration:
            del self._forgetting[topic]
        else:
            self.shard.after(1, lambda: self._go_on_forgetting(topic, work))

    def _forget_in_parts(self, topic: str) -> Iterator[None]:
        """Yields after each part."""
        weight = 0
        for group_id, places in self.offsets.places_of_topic(topic).items():
            for some in (places[start : start + LOOKED_AT_ONCE] for start in range(0, len(places), LOOKED_AT_ONCE)):
                if weight >= LOOKED_AT_ONCE:
                    yield
                    weight = 0
                self._try_to_write(group_id, self.offsets.tombstones(group_id, some))
                weight += len(some) + BATCH_WEIGHT

    def _check_expiry_later(self) -> None:
        self.shard.after(self.shard.options.offsets_retention_check_interval_ms, self._check_expiry)

    def _check_expiry(self) -> None:
        """Deletes expired offsets, and empty groups without offsets."""
        self._go_on(self._expiry())

    def _go_on(self, work: Iterator[None]) -> None:
        """Runs one part of the check, and the next at the next tick, so that other requests are not delayed."""
        try:
            next(work)
        except StopIteration:
            self._check_expiry_later()
        else:
            self.shard.after(1, lambda: self._go_on(work))

    def _expiry(self) -> Iterator[None]:
        """The check; yields after each part. Its decisions are written by then, because state may change in between."""
        looked_at = 0
        for group_id in list(self.by_id):
            gone: list[Record] = []
            for topic in list(self.offsets.by_group.get(group_id, ())):
                partitions = list(self.offsets.by_group.get(group_id, {}).get(topic, ()))
                for start in range(0, len(partitions), LOOKED_AT_ONCE):
                    some = partitions[start : start + LOOKED_AT_ONCE]
                    if (group := self.by_id.get(group_id)) is not None:
                        gone += offsets_of.expired(self, group, topic, some)
                    looked_at += len(some)
                    if looked_at >= LOOKED_AT_ONCE:
                        self._try_to_write(group_id, gone)
                        gone, looked_at = [], 0
                        yield
            self._try_to_write(group_id, gone)
            self._forget_empty(group_id)
            looked_at += 1
            if looked_at >= LOOKED_AT_ONCE:
                looked_at = 0
                yield

    def _forget_empty(self, group_id: str) -> None:
        """Deletes a group without offsets and members, unless a member is joining."""
        group = self.by_id.get(group_id)
        if group is None or self.offsets.holds(group_id) or not group.empty or (isinstance(group, ClassicGroup) and group.pending):
            return
        self._try_to_write(group_id, group.tombstones())

    def _forget(self, group_id: str, tombstones: list[Record]) -> None:
        """Writes tombstones in order, in several batches if necessary. Those before a refused batch are effective. Raises: as a
        write.
        """
        at_once = max(FORGOTTEN_BYTES // (len(group_id.encode()) + TOMBSTONE_BYTES), 1)
        for begin in range(0, len(tombstones), at_once):
            self.shard.write(group_id, tombstones[begin : begin + at_once])

    def _try_to_write(self, group_id: str, tombstones: list[Record]) -> None:
        try:
            self._forget(group_id, tombstones)
        except KafkaError:
            # No client waits for it; the next check or loading retries.
            return


def group_coordinator(context: BrokerContext, replicas: Replicas, controller: Controller) -> Coordinator[Groups]:
    """The group coordinator of a broker."""

    def replication_factor(settings: Settings) -> int:
        """A configured replication factor is not reduced."""
        return settings.options.offsets_topic_replication_factor if "offsets.topic.replication.factor" in settings.texts else -1

    def configs(options: BrokerOptions) -> dict[str, str]:
        size = options.offsets_topic_segment_bytes
        # Kafka's minimum of segment.bytes, which offsets.topic.segment.bytes does not have.
        segment = "segment.bytes" if size >= MiB else "internal.segment.bytes"
        return {"cleanup.policy": "compact", "compression.type": "producer", segment: str(size)}

    return Coordinator(
        context,
        replicas,
        controller,
        OFFSETS_TOPIC,
        Groups,
        partitions=lambda options: options.offsets_topic_num_partitions,
        replication_factor=replication_factor,
        configs=configs,
        codec=lambda options: Codec(options.offsets_topic_compression_codec),
    )


def topic_changed(coordinator: Coordinator[Groups], topic: str) -> None:
    """A topic was created, deleted or expanded in the image."""
    for shard in list(coordinator.shards.values()):
        if shard.state is ShardState.ACTIVE:
            shard.machine.topic_changed(topic)


def access_changed(coordinator: Coordinator[Groups]) -> None:
    """Rules about topics changed: regular expressions are evaluated again at the next requests of members."""
    for shard in list(coordinator.shards.values()):
        if shard.state is ShardState.ACTIVE:
            shard.machine.topics.version += 1


def _apply_offset(groups: Groups, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
    if value is not None:
        _add_group_of(groups, key)
    groups.offsets.apply(key, value)


def _add_group_of(groups: Groups, key: OffsetCommitKey) -> None:
    """Adds a group for a client that stores offsets without being a member."""
    if key.group not in groups.by_id:
        groups.by_id[key.group] = ClassicGroup(groups, key.group)


def _apply_classic(groups: Groups, key: GroupMetadataKey, value: GroupMetadataValue | None) -> None:
    group = groups.by_id.get(key.group)
    if value is None:
        if isinstance(group, ClassicGroup):
            del groups.by_id[key.group]
            group.close()
        return
    if not isinstance(group, ClassicGroup):
        if group is not None:
            group.close()
        group = groups.by_id[key.group] = ClassicGroup(groups, key.group)
    group.take(value)


#: By type of key.
APPLY: dict[type, Callable[[Groups, Any, Any], None]] = {
    OffsetCommitKey: _apply_offset,
    GroupMetadataKey: _apply_classic,
    **dict.fromkeys(CONSUMER_KEYS, service.apply),
}
