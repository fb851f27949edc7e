"""How much memory groups hold, and how much they may.

Clients decide how many groups, members and offsets there are, and how large the metadata of each is. So each group counts its bytes, each
shard counts those of its groups, and a broker's total is the sum over its shards::

    member   at most ottla.group.member.max.bytes     what one member sent and was assigned
    group    at most ottla.group.max.bytes            all members of one group; so the leader's JoinGroup answer is bounded, too
    broker   at most ottla.groups.max.bytes           all groups that this broker coordinates
    offsets  at most ottla.group.offsets.max.bytes    all offsets that this broker keeps

Only growth is refused. A member that sends what it sent before, or less, and an offset that replaces another, always pass. So a bound
that is reached, or lowered, ends no group that works. What is loaded from the log is counted and never refused.

Sizes are estimates: the bytes that a client sent, and for each object the memory that CPython takes for it, as measured. Source of the
idea: Kafka's group.max.size; Kafka has no bound in bytes.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ottla.base.units import SECOND_MS, KiB
from ottla.broker import effects
from ottla.wire import errors
from ottla.wire.errors import KafkaError

if TYPE_CHECKING:
    from ottla.broker.coordinator import Shard
    from ottla.broker.groups.groups import Groups

#: A member with its session and the request of it that waits, before the bytes that it sent; a member id that was given out; a group.
MEMBER_BYTES, PENDING_BYTES, GROUP_BYTES = 2304, 1088, 2 * KiB
#: A protocol of a member, a topic name that it subscribes to, a partition assigned to it, each with its entries in dicts.
PROTOCOL_BYTES, TOPIC_BYTES, PARTITION_BYTES = 160, 200, 160
#: A name that a regular expression matched, in the two sets that hold it.
MATCH_BYTES = 160
#: A committed offset without its text.
OFFSET_BYTES = 192
#: A string beside its characters, and the size of one character that is not ASCII at most.
STRING_BYTES, WIDE_BYTES = 52, 4
#: Refusals are logged at most once in this time.
WARN_INTERVAL_MS = 60 * SECOND_MS


def text_bytes(text: str | None) -> int:
    """Memory of a string."""
    if not text:
        return 0
    return STRING_BYTES + (len(text) if text.isascii() else WIDE_BYTES * len(text))


def protocols_bytes(protocols: Iterable[tuple[str, bytes]]) -> int:
    """Memory of a member's protocols, or of anything that is a name with bytes."""
    return sum(PROTOCOL_BYTES + text_bytes(name) + len(metadata) for name, metadata in protocols)


class Footprint:
    """Bytes that something holds; what it is part of counts them too."""

    __slots__ = ("_own", "bytes", "within")

    def __init__(self, within: "Footprint | None" = None, own: int = 0) -> None:
        """``own`` are the bytes of the thing itself, counted with the first of what it holds."""
        self.bytes = 0
        self.within = within
        self._own = own

    def add(self, size: int) -> None:
        """Count more bytes, or, with a negative number, fewer."""
        if not self.bytes:
            size += self._own
        self.bytes += size
        if self.within is not None:
            self.within.add(size)

    def clear(self) -> None:
        """The thing is gone."""
        if self.bytes:
            self.add(-self.bytes)


def members_bytes(shard: "Shard[Groups]") -> int:
    """Memory of all groups that this broker coordinates, without their offsets."""
    return sum(each.machine.footprint.bytes for each in shard.node.groups.shards.values())


def offsets_bytes(shard: "Shard[Groups]") -> int:
    """Memory of all offsets that this broker keeps."""
    return sum(each.machine.offsets.bytes for each in shard.node.groups.shards.values())


def check_member(groups: "Groups", group_id: str, size: int) -> None:
    """Refuse a member that is too large by itself. Raises: InvalidRequest."""
    limit = groups.shard.options.group_member_max_bytes
    if size > limit:
        raise refusal(
            groups,
            errors.InvalidRequest(
                f"a member of group {group_id!r} needs {size} bytes for its metadata, and ottla.group.member.max.bytes is {limit}; "
                "subscribe to fewer topics, or raise the setting"
            ),
        )


def check_growth(groups: "Groups", group_id: str, held: int, growth: int) -> None:
    """Refuse ``growth`` bytes for a group that holds ``held`` bytes. Raises: GroupMaxSizeReached."""
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


def refusal(groups: "Groups", error: KafkaError) -> KafkaError:
    """The error, which is also logged, at most once in a while: not every client shows it, and not every API version carries it."""
    shard: Any = groups.shard
    if shard.now_ms >= groups.warned_ms + WARN_INTERVAL_MS:
        groups.warned_ms = shard.now_ms
        shard.node.effects.append(effects.Warn(message=f"a request of a group's member is refused: {error}"))
    return error
