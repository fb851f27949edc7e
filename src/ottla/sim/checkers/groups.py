"""What must hold of consumer groups, one small class each. They hear what members and other users saw; ``problems`` must stay empty.

A committed offset is a register that many write and read at overlapping times, and what is read must fit some order of the writes::

    commit 5   ├────┤ acknowledged
    commit 9             ├──────────── unclear: nobody answered
    commit 7                   ├───┤ acknowledged
    read                                 ├──┤   may be 7, or 9 while that may still be on its way, never 5, never none

A write takes effect between when it was sent and when it was answered. One whose outcome is unclear may do so until its connection was
closed, at both ends; or, where requests may come late, until its sender is fenced: another member was given the partition.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

#: No time: never.
NEVER = 1 << 60
#: The committed offset of a partition that has none.
NONE = -1


class GroupChecker:
    """Base of the checkers: hears everything, complains about nothing. Members are named; ``epoch`` is a generation or a member's epoch;
    a partition is (group, number). ``lawful``: whether the coordinator would take a commit from the member now; None if nobody knows.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []

    def assigned(self, group: str, member: str, epoch: int, partitions: list[int], *, lawful: bool | None, now_ms: int) -> None:
        """A member's user began to read partitions."""

    def released(self, group: str, member: str, partitions: list[int]) -> None:
        """A member's user reads them no more, or is no more."""

    def synced(self, group: str, member: str, generation: int, asked_ms: int, now_ms: int) -> None:
        """A member was given its part of a generation of the classic protocol."""

    def began(self, group: str, member: str, partition: int, offset: int) -> None:
        """A member reads on where the group was."""

    def delivered(self, group: str, member: str, partition: int, offset: int) -> None:
        """A user got a record."""

    def commit_sent(self, write: "Write") -> None:
        """Somebody commits, or deletes."""

    def commit_answered(self, write: "Write") -> None:
        """Its outcome is known, or never will be."""

    def read(self, group: str, partition: int, offset: int, *, asked_ms: int, now_ms: int) -> None:
        """Somebody was told a committed offset."""

    def finish(self, ends: dict[int, int], groups: list[str]) -> None:
        """The history is over; these are the ends of the partitions, and the groups that read all of them."""


@dataclass(slots=True, eq=False)
class Write:
    """A commit of one partition."""

    group: str
    partition: int
    offset: int
    #: Name and epoch of the member; None for somebody outside.
    by: tuple[str, int] | None
    sent_ms: int
    #: acknowledged, refused, unclear, or not known yet.
    outcome: str = ""
    #: When it was acknowledged.
    done_ms: int = NEVER
    #: It took effect by then, if ever.
    by_ms: int = NEVER


class OneOwner(GroupChecker):
    """No partition is read by two members whose commits the coordinator would take."""

    def __init__(self, lawful: Callable[[str], bool | None]) -> None:
        super().__init__()
        self._lawful = lawful
        #: By partition, who reads it, with the epoch in which it was given.
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
    """Within a generation, each partition has one owner, and no member is let into an old generation when a newer one works.

    Only for groups that stay with the classic protocol.
    """

    def __init__(self) -> None:
        super().__init__()
        self._owners: dict[tuple[str, int, int], str] = {}
        #: The newest generation that worked, and since when.
        self._newest: dict[str, tuple[int, int]] = {}

    def assigned(self, group: str, member: str, epoch: int, partitions: list[int], *, lawful: bool | None, now_ms: int) -> None:
        # Lives of one static member: it keeps its place under another name.
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
    """A committed offset that anybody is told fits the commits: none acknowledged is forgotten, none that was refused shows."""

    def __init__(self) -> None:
        super().__init__()
        #: All writes but those that were refused. None is dropped: what was asked long ago may be answered late.
        self._writes: dict[tuple[str, int], list[Write]] = {}

    def commit_sent(self, write: Write) -> None:
        self._of(write.group, write.partition).append(write)

    def commit_answered(self, write: Write) -> None:
        writes = self._of(write.group, write.partition)
        if write.outcome == "refused" and write in writes:
            writes.remove(write)

    def assigned(self, group: str, member: str, epoch: int, partitions: list[int], *, lawful: bool | None, now_ms: int) -> None:
        """Who had the partition before is fenced: what it has on its way comes to nothing from now on."""
        if lawful:
            for partition in partitions:
                for write in self._of(group, partition):
                    if write.by is not None and write.by[0] != member:
                        write.by_ms = min(write.by_ms, now_ms)

    def read(self, group: str, partition: int, offset: int, *, asked_ms: int, now_ms: int) -> None:
        writes = self._of(group, partition)
        # The last write that was sure to be done when the question was asked: what was over before that is overwritten.
        floor_ms = max((write.sent_ms for write in writes if write.done_ms <= asked_ms), default=0)
        fits = [write for write in writes if min(write.by_ms, write.done_ms) >= floor_ms]
        shown = [write for write in fits if write.offset == offset]
        if len(shown) == 1:
            # Whatever became of its answer, it is done: it must not be taken back.
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
    """A commit that was sent after another member was given the partition is never acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        #: Who was given the partition last, if that is certain.
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
    """What of one partition a group was given."""

    #: Everything below was delivered to somebody.
    upto: int = 0
    beyond: set[int] = field(default_factory=set)

    def add(self, offset: int) -> None:
        if offset >= self.upto:
            self.beyond.add(offset)
            while self.upto in self.beyond:
                self.beyond.discard(self.upto)
                self.upto += 1


class NothingIsSkipped(GroupChecker):
    """Each record goes to some member of each group; nobody begins beyond what was delivered, or gets one record without the one before."""

    def __init__(self) -> None:
        super().__init__()
        self._coverage: dict[tuple[str, int], Coverage] = {}
        self._next: dict[tuple[str, int], int] = {}

    def began(self, group: str, member: str, partition: int, offset: int) -> None:
        upto = self._of(group, partition).upto
        if offset > upto:
            self.problems.append(f"skipped: {member} begins at {offset} of {partition}; {group} has been given what is below {upto}")
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
