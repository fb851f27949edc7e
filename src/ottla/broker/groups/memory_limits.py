"""Memory limits of groups.

Clients determine the number of groups, members and offsets, and the size of their metadata. So each group counts its bytes, each shard
adds up its groups, and a broker its shards::

    member   at most ottla.group.member.max.bytes     what one member sent and was assigned
    group    at most ottla.group.max.bytes            all members of one group; this also limits the leader's JoinGroup response
    broker   at most ottla.groups.max.bytes           all groups that this broker coordinates
    offsets  at most ottla.group.offsets.max.bytes    all offsets that this broker stores

Only growth is refused. A member that sends the same or less, and an offset that replaces another, are always accepted. So a limit that is
reached or lowered breaks no existing group. Loaded records are counted and never refused.

Sizes are estimates: the bytes sent by clients, and measured CPython memory per object. Kafka has group.max.size, but no limit in bytes.
"""

from collections.abc import Iterable
from typing import Any, Protocol

from ottla.base.log_levels import GROUP
from ottla.base.units import SECOND_MS, KiB
from ottla.broker.coordinator import Shard
from ottla.wire import errors
from ottla.wire.errors import KafkaError

#: A member with its session and waiting request, without the bytes that it sent; a pending member id; a group.
MEMBER_BYTES, PENDING_BYTES, GROUP_BYTES = 2304, 1088, 2 * KiB
#: A protocol of a member, a subscribed topic name, an assigned partition with its assignment epoch, each with its dict entries.
PROTOCOL_BYTES, TOPIC_BYTES, PARTITION_BYTES = 160, 200, 216
#: A name that matched a regular expression, in two sets.
MATCH_BYTES = 160
#: A committed offset without its metadata.
OFFSET_BYTES = 192
#: A string in addition to its characters, and the maximum size of a character that is not ASCII.
STRING_BYTES, WIDE_BYTES = 52, 4
#: Minimum interval of logged refusals.
WARN_INTERVAL_MS = 60 * SECOND_MS


def text_bytes(text: str | None) -> int:
    """Memory of a string."""
    if not text:
        return 0
    return STRING_BYTES + (len(text) if text.isascii() else WIDE_BYTES * len(text))


def protocols_bytes(protocols: Iterable[tuple[str, bytes]]) -> int:
    """Memory of a member's protocols, or of other names with bytes."""
    return sum(PROTOCOL_BYTES + text_bytes(name) + len(metadata) for name, metadata in protocols)


class Footprint:
    """Bytes of an object; its container counts them too."""

    __slots__ = ("_own", "bytes", "within")

    def __init__(self, within: "Footprint | None" = None, own: int = 0) -> None:
        """``own``: bytes of the object itself, counted with its first content."""
        self.bytes = 0
        self.within = within
        self._own = own

    def add(self, size: int) -> None:
        """Counts more or, if negative, fewer bytes."""
        if not self.bytes:
            size += self._own
        self.bytes += size
        if self.within is not None:
            self.within.add(size)

    def clear(self) -> None:
        """The object was deleted."""
        if self.bytes:
            self.add(-self.bytes)


class LimitedGroups(Protocol):
    """The groups of one shard."""

    shard: Shard[Any]
    #: Time of the last logged refusal.
    warned_ms: int


def members_bytes(shard: Shard[Any]) -> int:
    """Memory of all groups of this broker, without offsets."""
    return sum(each.machine.footprint.bytes for each in shard.siblings.values())


def offsets_bytes(shard: Shard[Any]) -> int:
    """Memory of all offsets of this broker."""
    return sum(each.machine.offsets.bytes for each in shard.siblings.values())


def check_member(groups: LimitedGroups, group_id: str, size: int) -> None:
    """Refuses a member that is too large. Raises: InvalidRequest."""
    limit = groups.shard.options.group_member_max_bytes
    if size > limit:
        raise refusal(
            groups,
            errors.InvalidRequest(
                f"a member of group {group_id!r} needs {size} bytes for its metadata, and ottla.group.member.max.bytes is {limit}; "
                "subscribe to fewer topics, or raise the setting"
            ),
        )


def check_growth(groups: LimitedGroups, group_id: str, held: int, growth: int) -> None:
    """Refuses ``growth`` bytes for a group of ``held`` bytes. Raises: GroupMaxSizeReached."""
    if growth <= 0:
        return
    options = groups.shard.options
    if held + growth > options.group_max_bytes:
        raise refusal(
            groups,
            errors.GroupMaxSizeReached(
                f"group {group_id!r} holds {held} bytes of metadata and would hold {held + growth}; ottla.group.max.bytes is "
                f"{options.group_max_bytes}"
            ),
        )
    total = members_bytes(groups.shard)
    if total + growth > options.groups_max_bytes:
        raise refusal(
            groups,
            errors.GroupMaxSizeReached(
                f"group {group_id!r} cannot grow by {growth} bytes: the groups of this broker hold {total} bytes of metadata, and "
                f"ottla.groups.max.bytes is {options.groups_max_bytes}"
            ),
        )


def refusal(groups: LimitedGroups, error: KafkaError) -> KafkaError:
    """The error, which is logged at most once per interval: not every client shows it, and not every API version has a field for it."""
    shard = groups.shard
    if shard.now_ms >= groups.warned_ms + WARN_INTERVAL_MS:
        groups.warned_ms = shard.now_ms
        shard.context.log.warn(GROUP, f"a request of a group's member is refused: {error}")
    return error
