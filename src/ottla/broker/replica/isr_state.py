"""ISR and replica progress on a leader: the ISR of the known state, what each follower has, and which ISR to request.

A leader that requested another ISR does not know which one is in effect until it receives a new state: the controller may elect from
either. So it counts the members of both, the maximal ISR, which shrinks only with a later state, whatever the response to the request was.

::

    replicas   1 (leader)  2          3          4
    ISR        *           *          *
    requested  *           *                     *        3 lags, 4 has caught up
    counts     *           *          *          *        until the state is known

The assignment and the state are two nodes of the store and arrive in any order. A member named by a state counts, assigned or not; an
assignment alone removes no member. Adding replicas of a reassignment do not change how large the ISR must be.

Source: KIP-455, KIP-497 (AlterPartition), KIP-966 (nothing is committed below min.insync.replicas), Kafka's Partition.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ottla.store.layout import PartitionState


@dataclass(slots=True)
class ReplicaProgress:
    """Progress of a follower in the present epoch."""

    #: Everything below is on its disk; -1 until it has fetched.
    position: int
    #: When it last had everything that the leader had.
    caught_up_ms: int
    #: The registration under which it fetches.
    broker_epoch: int = -1
    #: Log end at its last fetch, and the time of that fetch.
    end_then: int = -1
    fetched_ms: int = -1
    #: As an ISR member it fetched from a lower offset than before: it lost records and must not be elected.
    lost_records: bool = False
    #: Its recorded log start; -1 until it has reported one.
    log_start: int = -1
    #: Number of consecutive fetches from the same offset although there was data.
    stuck: int = 0


class IsrState:
    """ISR state of one leader in one epoch."""

    __slots__ = ("_began_ms", "_counted", "_factor", "_me", "elr", "isr", "maximal", "progress", "recovering", "replicas", "version")

    def __init__(
        self, me: int, replicas: Sequence[int], state: PartitionState, version: int, now_ms: int, *, adding: Sequence[int] = ()
    ) -> None:
        self._me = me
        self._began_ms = now_ms
        #: In the order of the assignment.
        self.replicas = tuple(replicas)
        #: Replication factor, without adding replicas.
        self._factor = len(self.replicas) - len(adding)
        #: By broker: all replicas and members of the maximal ISR, except the leader.
        self.progress = {broker: ReplicaProgress(-1, now_ms) for broker in self.replicas if broker != me}
        #: Version of the known state: Kafka's partition epoch.
        self.version = -1
        self.follow(state, version)

    def follow_replicas(self, replicas: Sequence[int], adding: Sequence[int], now_ms: int) -> None:
        """Adopts a new assignment. Removed replicas count until a state is without them."""
        self.replicas, self._factor = tuple(replicas), len(replicas) - len(adding)
        for broker in self.replicas:
            if broker != self._me and broker not in self.progress:
                self.progress[broker] = ReplicaProgress(-1, now_ms)

    def follow(self, state: PartitionState, version: int) -> None:
        """Adopts a state with this version; requests based on an earlier version can no longer succeed."""
        if version > self.version or self.version < 0:
            self.version = version
            self.isr = state.isr
            #: Eligible replicas outside of the ISR: nothing is committed while there are any.
            self.elr = state.elr
            #: Elected uncleanly, and the log is not on disk yet.
            self.recovering = state.recovering
            self._count(frozenset(state.isr))

    def propose(self, isr: tuple[int, ...]) -> None:
        """This ISR was requested."""
        self._count(self.maximal | frozenset(isr))

    def _count(self, members: frozenset[int]) -> None:
        #: All brokers that are in the ISR or may be.
        self.maximal = members
        for broker in sorted(members):
            if broker != self._me and broker not in self.progress:
                self.progress[broker] = ReplicaProgress(-1, self._began_ms)
        self._counted = [progress for broker, progress in self.progress.items() if broker in members]

    def fetched(self, broker: int, *, offset: int, end_offset: int, broker_epoch: int, now_ms: int) -> None:
        """A follower of this epoch fetches from ``offset`` while the log ends at ``end_offset``."""
        progress = self.progress[broker]
        if broker not in self.maximal:
            progress.lost_records = False
        elif offset < progress.position and broker_epoch == progress.broker_epoch:
            progress.lost_records = True
        again = offset == progress.position and offset < progress.end_then and broker_epoch == progress.broker_epoch
        progress.stuck = progress.stuck + 1 if again else 0
        if offset >= end_offset:
            progress.caught_up_ms = now_ms
        elif offset >= progress.end_then >= 0:
            progress.caught_up_ms = max(progress.caught_up_ms, progress.fetched_ms)
        progress.position, progress.broker_epoch = offset, broker_epoch
        progress.end_then, progress.fetched_ms = end_offset, now_ms

    def reports_start(self, broker: int, log_start: int) -> bool:
        """A follower of this epoch reports its recorded log start; returns whether it changed."""
        progress = self.progress[broker]
        changed = progress.log_start != log_start
        progress.log_start = log_start
        return changed

    def low_watermark(self, own: int, *, alive: Callable[[int], bool]) -> int:
        """The lowest recorded log start, ``own`` for the leader, of the replicas that are alive or in the maximal ISR."""
        for broker, progress in self.progress.items():
            if progress.log_start < own and (broker in self.maximal or alive(broker)):
                own = max(progress.log_start, 0)
        return own

    def had_all(self, broker: int, at_ms: int) -> None:
        """No records were appended since this follower fetched at the log end; it sent a fetch at this time."""
        progress = self.progress.get(broker)
        if progress is not None and progress.position >= progress.end_then >= 0:
            progress.caught_up_ms = max(progress.caught_up_ms, at_ms)

    def committed(self, own: int, *, min_insync: int) -> int:
        """The offset up to which all members of the maximal ISR have the log, ``own`` for the leader; -1 while the ISR is too small to
        commit, or while an eligible replica is outside of it.
        """
        if self.elr or len(self.isr) < min(min_insync, self._factor):
            return -1
        for progress in self._counted:
            if progress.position < own:
                own = progress.position
        return own

    def wanted(
        self, now_ms: int, *, end_offset: int, joins_at: int, lag_max_ms: int, sound: Callable[[int, int], bool], log_start: int = 0
    ) -> tuple[int, ...] | None:
        """The ISR to request; None if the present one is right.

        A member leaves if it did not catch up for ``lag_max_ms`` or lost records. A replica joins if it has everything below ``joins_at``
        and does not lag, and if its log does not start before the leader's ``log_start``: as leader it would bring deleted records back.
        ``sound`` is whether a broker is alive under an epoch, healthy and staying. A requested member that is not is removed from the
        request.
        """
        members = []
        for broker in self.replicas:
            if broker == self._me:
                members.append(broker)
                continue
            progress = self.progress[broker]
            if progress.position < end_offset and now_ms - progress.caught_up_ms > lag_max_ms:
                continue
            if self._stays(broker, progress, joins_at) and not self._refused(broker, progress, sound):
                if not progress.lost_records:
                    members.append(broker)
            elif progress.position >= joins_at and max(progress.log_start, 0) >= log_start and sound(broker, progress.broker_epoch):
                members.append(broker)
        if set(members) == set(self.isr) == self.maximal:
            return None
        return tuple(members)

    def _stays(self, broker: int, progress: ReplicaProgress, joins_at: int) -> bool:
        """Whether a replica already counts as a member. One that was only requested must have everything of the time of the request: a
        leader that continues in its epoch counts with all members that it ever requested.
        """
        return broker in self.isr or (broker in self.maximal and progress.position >= joins_at)

    def _refused(self, broker: int, progress: ReplicaProgress, sound: Callable[[int, int], bool]) -> bool:
        """Whether a requested replica cannot join any more: its broker is gone or stops."""
        return broker not in self.isr and progress.broker_epoch >= 0 and not sound(broker, progress.broker_epoch)
