"""Invariants of consumer groups, one small class each. They get what members and other clients observe; ``problems`` must stay empty.

A committed offset is a register with concurrent writes and reads. A read must fit some order of the writes::

    commit 5   ├────┤ acknowledged
    commit 9             ├──────────── unclear: no response
    commit 7                   ├───┤ acknowledged
    read                                 ├──┤   may be 7, or 9 while that commit may still be executed, never 5, never none

A write takes effect between its request and its response. If the outcome is unclear, it may take effect until both ends of its connection
are closed; or, where requests may be late, until its sender is fenced because another member got the partition.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

#: A time that never comes.
NEVER = 1 << 60
#: Committed offset of a partition without a commit.
NONE = -1


class GroupChecker:
    """Base of the checkers: ignores everything. Members have names; ``epoch`` is a generation or a member epoch; a partition is (group,
    number). ``lawful``: whether the coordinator would accept a commit of the member now; None if unknown.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []

    def assigned(self, group: str, member: str, epoch: int, partitions: list[int], *, lawful: bool | None, now_ms: int) -> None:
        """A member's user starts to read partitions."""

    def released(self, group: str, member: str, partitions: list[int]) -> None:
        """A member's user stops to read them, or the member ended."""

    def synced(self, group: str, member: str, generation: int, asked_ms: int, now_ms: int) -> None:
        """A member got its assignment in a generation of the classic protocol."""

    def began(self, group: str, member: str, partition: int, offset: int) -> None:
        """A member starts at the committed offset."""

    def delivered(self, group: str, member: str, partition: int, offset: int) -> None:
        """A user got a record."""

    def commit_sent(self, write: "Write") -> None:
        """A client commits or deletes an offset."""

    def commit_answered(self, write: "Write") -> None:
        """The outcome of a write is known, or will never be."""

    def read(self, group: str, partition: int, offset: int, *, asked_ms: int, now_ms: int) -> None:
        """A client fetched a committed offset."""

    def finish(self, ends: dict[int, int], groups: list[str]) -> None:
        """The history is over, with these end offsets and the groups that read all of them."""


@dataclass(slots=True, eq=False)
class Write:
    """A commit of one partition."""

    group: str
    partition: int
    offset: int
    #: Name and epoch of the member; None for a client that is not a member.
    by: tuple[str, int] | None
    sent_ms: int
    #: acknowledged, refused, unclear, or empty while unknown.
    outcome: str = ""
    #: When it was acknowledged.
    done_ms: int = NEVER
    #: It took effect before this time, if at all.
    by_ms: int = NEVER


class OneOwner(GroupChecker):
    """No partition is read by two members whose commits the coordinator would accept."""

    def __init__(self, lawful: Callable[[str], bool | None]) -> None:
        super().__init__()
        self._lawful = lawful
        #: Readers of each partition, with the epoch in which it was assigned.
        self._readers: dict[tuple[str, int], dict[str, int]] = {}

    def assigned(self, group: str, member: str, epoch: int, partitions: list[int], *, lawful: bool | None, now_ms: int) -> None:
        for partition in partitions:
            readers = self._readers.setdefault((group, partition), {})
            for other, theirs in readers.items():
                if other != member and lawful and self._lawful(other):
                    self.problems.append(
                        f"two owners: {member} was given {partition} of {group} in {epoch}; {other} has it since {theirs} and is not fenced"
                    )
            readers[member] = epoch

    def released(self, group: str, member: str, partitions: list[int]) -> None:
        for partition in partitions:
            self._readers.get((group, partition), {}).pop(member, None)


class GenerationsAreDisjoint(GroupChecker):
    """Within a generation each partition has one owner, and no member joins an old generation while a newer one is active.

    Only for groups that use the classic protocol alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self._owners: dict[tuple[str, int, int], str] = {}
        #: The newest active generation, and since when.
        self._newest: dict[str, tuple[int, int]] = {}

    def assigned(self, group: str, member: str, epoch: int, partitions: list[int], *, lawful: bool | None, now_ms: int) -> None:
        # Lives of one static member: it keeps its assignment under another member id.
        place = member.rpartition(".")[0]
        for partition in partitions:
            owner = self._owners.setdefault((group, epoch, partition), place)
            if owner != place:
                self.problems.append(f"generation {epoch} of {group} gave partition {partition} to {owner} and to {place}")

    def synced(self, group: str, member: str, generation: int, asked_ms: int, now_ms: int) -> None:
        newest, since_ms = self._newest.get(group, (0, 0))
        if generation < newest and asked_ms > since_ms:
            self.problems.append(f"{member} was let into generation {generation} of {group} after {newest} worked")
        if generation > newest:
            self._newest[group] = generation, now_ms


class CommittedIsKept(GroupChecker):
    """A fetched committed offset fits the commits: acknowledged ones are not lost, refused ones are not visible."""

    def __init__(self) -> None:
        super().__init__()
        #: All writes that were not refused. None is dropped, because a fetch may be answered late.
        self._writes: dict[tuple[str, int], list[Write]] = {}

    def commit_sent(self, write: Write) -> None:
        self._of(write.group, write.partition).append(write)

    def commit_answered(self, write: Write) -> None:
        writes = self._of(write.group, write.partition)
        if write.outcome == "refused" and write in writes:
            writes.remove(write)

    def assigned(self, group: str, member: str, epoch: int, partitions: list[int], *, lawful: bool | None, now_ms: int) -> None:
        """The former owner of the partition is fenced: its writes in flight have no effect from now on."""
        if lawful:
            for partition in partitions:
                for write in self._of(group, partition):
                    if write.by is not None and write.by[0] != member:
                        write.by_ms = min(write.by_ms, now_ms)

    def read(self, group: str, partition: int, offset: int, *, asked_ms: int, now_ms: int) -> None:
        writes = self._of(group, partition)
        # The last write that was certainly done when the fetch was sent; earlier ones are overwritten.
        floor_ms = max((write.sent_ms for write in writes if write.done_ms <= asked_ms), default=0)
        fits = [write for write in writes if min(write.by_ms, write.done_ms) >= floor_ms]
        shown = [write for write in fits if write.offset == offset]
        if len(shown) == 1:
            # It took effect, whatever its response: it must not be undone.
            shown[0].done_ms = min(shown[0].done_ms, now_ms)
        if not shown:
            known = ", ".join(f"{write.offset} ({write.outcome or 'under way'})" for write in fits)
            told = "none" if offset == NONE else offset
            self.problems.append(f"committed offset of {partition} of {group} told as {told}; it can only be {known}")

    def _of(self, group: str, partition: int) -> list[Write]:
        found = self._writes.get((group, partition))
        if found is None:
            first = Write(group, partition, NONE, None, 0, "acknowledged", 0, 0)
            found = self._writes[group, partition] = [first]
        return found


class ZombiesAreFenced(GroupChecker):
    """A commit that was sent after another member got the partition is never acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        #: The last owner of each partition, if it is certain.
        self._owner: dict[tuple[str, int], str | None] = {}
        self._zombies: set[Write] = set()

    def assigned(self, group: str, member: str, epoch: int, partitions: list[int], *, lawful: bool | None, now_ms: int) -> None:
        for partition in partitions:
            self._owner[group, partition] = member if lawful else None

    def commit_sent(self, write: Write) -> None:
        owner = self._owner.get((write.group, write.partition))
        if write.by is not None and owner is not None and owner != write.by[0]:
            self._zombies.add(write)

    def commit_answered(self, write: Write) -> None:
        if write in self._zombies:
            self._zombies.discard(write)
            if write.outcome == "acknowledged":
                owner = self._owner[write.group, write.partition]
                self.problems.append(f"zombie: {write.by} committed {write.partition} of {write.group}, which was given to {owner}")


@dataclass(slots=True)
class Coverage:
    """What a group got of one partition."""

    #: All records below were delivered to some member.
    upto: int = 0
    beyond: set[int] = field(default_factory=set)

    def add(self, offset: int) -> None:
        if offset >= self.upto:
            self.beyond.add(offset)
            while self.upto in self.beyond:
                self.beyond.discard(self.upto)
                self.upto += 1


class NothingIsSkipped(GroupChecker):
    """Each record is delivered to some member of each group; no member starts beyond the delivered records or skips one."""

    def __init__(self) -> None:
        super().__init__()
        self._coverage: dict[tuple[str, int], Coverage] = {}
        self._next: dict[tuple[str, int], int] = {}

    def began(self, group: str, member: str, partition: int, offset: int) -> None:
        upto = self._of(group, partition).upto
        if offset > upto:
            self.problems.append(f"skipped: {member} begins at {offset} of {partition}; {group} has records below {upto} only")
        self._next[member, partition] = offset

    def delivered(self, group: str, member: str, partition: int, offset: int) -> None:
        expected = self._next.get((member, partition))
        if offset != expected:
            self.problems.append(f"{member} was given {offset} of {partition}, not {expected}")
        self._next[member, partition] = offset + 1
        self._of(group, partition).add(offset)

    def finish(self, ends: dict[int, int], groups: list[str]) -> None:
        for group in groups:
            for partition, end in ends.items():
                upto = self._of(group, partition).upto
                if upto != end:
                    self.problems.append(f"{group} was given {partition} up to {upto}; it ends at {end}")

    def _of(self, group: str, partition: int) -> Coverage:
        return self._coverage.setdefault((group, partition), Coverage())
