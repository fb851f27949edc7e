"""Who is in sync with a leader, and how far: the ISR as the controller last said, what each follower has, and which ISR to ask for next.

A leader that has asked for another ISR does not know which one holds until it is told: a controller may elect from either. So it counts
with the members of both, the maximal ISR, and that only shrinks again when a later state is known, whatever became of the question.

::

    replicas   1 (leader)  2          3          4
    ISR        *           *          *
    asked for  *           *                     *        3 lags, 4 has caught up
    counts     *           *          *          *        until the state says which it is

The assignment and the state are two nodes of the store, and either may be heard first. Whoever a state names counts, assigned or not; an
assignment by itself lets nobody go. Replicas that a reassignment is adding make no difference to how large the ISR must be.

Source: KIP-455, KIP-497 (AlterPartition), KIP-966 (nothing is committed below min.insync.replicas), Kafka's Partition.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ottla.store.layout import PartitionState


@dataclass(slots=True)
class Standing:
    """What the leader knows of a follower, in the present epoch."""

    #: Everything below is safe there; -1 until it has fetched.
    position: int
    #: When it had last all that the leader had.
    caught_up_ms: int
    #: The registration under which it fetches.
    broker_epoch: int = -1
    #: The log end at its last fetch, and when that was.
    end_then: int = -1
    fetched_ms: int = -1
    #: As a member of the ISR it asked for less than it had told to have: it must not be elected, whatever it has lost.
    lost_records: bool = False
    #: How often in a row it has asked for the same again, although there was something to be had.
    stuck: int = 0


class InSync:
    """See the module's theory. Belongs to one leader in one epoch."""

    __slots__ = ("_began_ms", "_counted", "_factor", "_me", "elr", "isr", "maximal", "recovering", "replicas", "standings", "version")

    def __init__(
        self, me: int, replicas: Sequence[int], state: PartitionState, version: int, now_ms: int, *, adding: Sequence[int] = ()
    ) -> None:
        self._me = me
        self._began_ms = now_ms
        #: In the order of the assignment.
        self.replicas = tuple(replicas)
        #: Replicas without those being added.
        self._factor = len(self.replicas) - len(adding)
        #: By broker: all replicas, and members of the maximal ISR, but the leader.
        self.standings = {broker: Standing(-1, now_ms) for broker in self.replicas if broker != me}
        #: Version of the state known here; Kafka's partition epoch.
        self.version = -1
        self.follow(state, version)

    def follow_replicas(self, replicas: Sequence[int], adding: Sequence[int], now_ms: int) -> None:
        """The assignment changed. Those who are gone from it count until a state is without them."""
        self.replicas, self._factor = tuple(replicas), len(replicas) - len(adding)
        for broker in self.replicas:
            if broker != self._me and broker not in self.standings:
                self.standings[broker] = Standing(-1, now_ms)

    def follow(self, state: PartitionState, version: int) -> None:
        """This state holds as of this version; what was asked for on top of an earlier one can no longer come true."""
        if version > self.version or self.version < 0:
            self.version = version
            self.isr = state.isr
            #: Who left the ISR and may lead all the same, because nothing is committed while it is named.
            self.elr = state.elr
            #: Elected uncleanly, and not yet settled.
            self.recovering = state.recovering
            self._count(frozenset(state.isr))

    def propose(self, isr: tuple[int, ...]) -> None:
        """This ISR is asked for."""
        self._count(self.maximal | frozenset(isr))

    def _count(self, members: frozenset[int]) -> None:
        #: Every broker that is in the ISR, or may be.
        self.maximal = members
        for broker in sorted(members):
            if broker != self._me and broker not in self.standings:
                self.standings[broker] = Standing(-1, self._began_ms)
        self._counted = [standing for broker, standing in self.standings.items() if broker in members]

    def fetched(self, broker: int, *, offset: int, end_offset: int, broker_epoch: int, now_ms: int) -> None:
        """A follower of this epoch fetches from ``offset`` while the log ends at ``end_offset``."""
        standing = self.standings[broker]
        if broker not in self.maximal:
            standing.lost_records = False
        elif offset < standing.position and broker_epoch == standing.broker_epoch:
            standing.lost_records = True
        again = offset == standing.position and offset < standing.end_then and broker_epoch == standing.broker_epoch
        standing.stuck = standing.stuck + 1 if again else 0
        if offset >= end_offset:
            standing.caught_up_ms = now_ms
        elif offset >= standing.end_then >= 0:
            standing.caught_up_ms = max(standing.caught_up_ms, standing.fetched_ms)
        standing.position, standing.broker_epoch = offset, broker_epoch
        standing.end_then, standing.fetched_ms = end_offset, now_ms

    def had_all(self, broker: int, at_ms: int) -> None:
        """Nothing has come to the log since this follower fetched at its end, and it was heard at this time."""
        standing = self.standings.get(broker)
        if standing is not None and standing.position >= standing.end_then >= 0:
            standing.caught_up_ms = max(standing.caught_up_ms, at_ms)

    def committed(self, own: int, *, min_insync: int) -> int:
        """What every member of the maximal ISR has, the leader having ``own``; -1 while the ISR is too small to commit anything, or
        somebody outside of it may be elected because it was."""
        if self.elr or len(self.isr) < min(min_insync, self._factor):
            return -1
        for standing in self._counted:
            if standing.position < own:
                own = standing.position
        return own

    def wanted(
        self, now_ms: int, *, end_offset: int, joins_at: int, lag_max_ms: int, sound: Callable[[int, int], bool]
    ) -> tuple[int, ...] | None:
        """The ISR to ask for; None when the present one is right.

        A member leaves when it did not catch up for ``lag_max_ms``, or turned out to have less than it once had. A replica joins that has
        everything below ``joins_at``, and is not as late as that; ``sound`` tells whether a broker is alive under an epoch, fit, and stays;
        one that was asked for and is not is asked for no more.
        """
        members = []
        for broker in self.replicas:
            if broker == self._me:
                members.append(broker)
                continue
            standing = self.standings[broker]
            if standing.position < end_offset and now_ms - standing.caught_up_ms > lag_max_ms:
                continue
            if self._stays(broker, standing, joins_at) and not self._refused(broker, standing, sound):
                if not standing.lost_records:
                    members.append(broker)
            elif standing.position >= joins_at and sound(broker, standing.broker_epoch):
                members.append(broker)
        if set(members) == set(self.isr) == self.maximal:
            return None
        return tuple(members)

    def _stays(self, broker: int, standing: Standing, joins_at: int) -> bool:
        """Whether a replica counts as a member already. One that was only asked for has to have what it was asked for with: a leader that
        goes on in its epoch after a while counts with all that it once asked for, whatever has become of them."""
        return broker in self.isr or (broker in self.maximal and standing.position >= joins_at)

    def _refused(self, broker: int, standing: Standing, sound: Callable[[int, int], bool]) -> bool:
        """Whether a replica that was asked for cannot join any more: its broker has gone, or is about to stop."""
        return broker not in self.isr and standing.broker_epoch >= 0 and not sound(broker, standing.broker_epoch)
