"""Leader election. Pure: an image in, new partition states out.

A member of the ISR is *sound* while it is alive under the registration in the state: it did not restart since it was added. Other members
must catch up before they count again. A sound member *stays* unless its broker is in controlled shutdown; one that does not stay leads
only if no other can. A member that restarted is *intact* if it has on disk what it had: always if acks=all means fsync, after clean stops
only with ``write.caching``. A broker reports its ineligible replicas: with a failed log directory or missing records
(``replica_health.py``), and with a full disk; the latter lead only if no other replica has *room*.

==========================  ==================================  ========================================================
leader                      members of the ISR                  new state
==========================  ==================================  ========================================================
stays                       all stay                            unchanged, also under a new controller
stays                       some do not                         same leader and epoch, ISR of those that stay
stays, but is full          some that stay have room            first replica among these, epoch + 1, ISR of those that stay
sound, stopping             some stay                           first replica among these, epoch + 1, ISR of these
sound, stopping             none stays                          same leader and epoch, alone in the ISR
fenced                      none stays, one is eligible         the first eligible one that is intact, epoch + 1, alone in the ISR
gone, or registered again   some sound                          first replica among those that stay, epoch + 1, ISR of these;
                                                                if none stays, the first sound one, alone in the ISR
gone, or registered again   none sound                          an intact one: the last leader, else of the ISR, else
                                                                eligible (below); epoch + 1, alone in the ISR
gone, or registered again   all are back, none is intact        the last leader, as in Kafka; epoch + 1, alone, recovering
gone                        none alive, unclean allowed         first live replica, epoch + 1, alone in the ISR, recovering
gone                        none alive                          leader -1, epoch + 1, once; the ISR stays, because it has the log
==========================  ==================================  ========================================================

**Eligible leader replicas.** Below min.insync.replicas nothing is committed. A replica that leaves the ISR then has everything that is
committed, and keeps it while nothing more is committed: the state names it as eligible, with its registration. A leader commits nothing
while its state has eligible replicas, whatever it knows of min.insync.replicas; a state with a large enough ISR has none. A replica that
restarts and is not intact is not eligible any more, only *last known*.

Source: Kafka's PartitionStateMachine and PartitionChangeBuilder; KIP-380 and KIP-903 for registrations, KIP-106 for unclean elections,
KIP-704 (recovering), KIP-841 (controlled shutdown), KIP-966 (eligible leader replicas).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from ottla.base.ids import BrokerId, LeaderEpoch, TopicPartition
from ottla.broker.metadata.image import NO_LEADER, Image, Registration, Topic
from ottla.log.options import TopicOptions
from ottla.store.layout import PartitionState

#: Settings of a topic by its name.
OptionsOf = Callable[[str], TopicOptions]


def election(image: Image, topic: Topic, number: int, *, options: TopicOptions) -> PartitionState | None:
    """The new state of one partition; None if it needs none."""
    context = ElectionContext.of(image, topic, number, options)
    state = context.state
    sound = [broker for broker in state.isr if context.sound(broker)]
    stay = [broker for broker in sound if not is_leaving(image, broker)]
    able = [broker for broker in stay if not context.full(broker)] or stay
    if not stay and is_fenced(image, state.leader):
        for broker in context.replicas:
            since = state.eligible_since(broker)
            if since >= 0 and not is_leaving(image, broker) and context.intact(broker, since):
                return context.led_by(broker, [broker])
    if state.leader in able or (state.leader in sound and not stay):
        return context.unless_same(context.led_by(state.leader, stay or [state.leader], same_epoch=True))
    for broker in context.replicas:
        if broker in (able or sound):
            return context.led_by(broker, stay or [broker])
    held = context.held()
    for broker in (context.last_leader, *context.replicas):
        if broker in state.isr and context.intact(broker, held[broker]):
            return context.led_by(broker, [broker])
    for broker in context.replicas:
        if broker in held and context.intact(broker, held[broker]):
            return context.led_by(broker, [broker])
    if all(broker in context.lost() for broker in held) and context.may_recover(context.last_leader):
        return context.recovered_by(context.last_leader)
    if options.unclean_leader_election_enable:
        return unclean_election(context)
    return context.unless_same(context.without_leader())


def unclean_election(context: "ElectionContext") -> PartitionState | None:
    """The leader of an unclean election: the first working replica, preferably without missing records, staying and with room. If there
    is none: None, or the state without a leader. An adding replica comes last, because it may have no records.
    """

    def worse(broker: int) -> tuple[bool, ...]:
        return broker in context.adding, is_leaving(context.image, broker), context.full(broker)

    alive = sorted((broker for broker in context.replicas if context.works(broker)), key=worse)
    whole = [broker for broker in alive if not context.misses_records(broker)]
    for broker in (*whole, *alive):
        return context.recovered_by(broker)
    return context.unless_same(context.without_leader())


def preferred(image: Image, topic: Topic, number: int, *, options: TopicOptions) -> PartitionState | None:
    """The state with the preferred replica, the first of the assignment, as leader; None if it leads already or cannot lead.

    Source: Kafka's preferred replica election.
    """
    context = ElectionContext.of(image, topic, number, options)
    if not preferred_can_lead(image, topic, number):
        return None
    return context.led_by(
        context.replicas[0], [broker for broker in context.state.isr if context.sound(broker) and not is_leaving(image, broker)]
    )


def preferred_can_lead(image: Image, topic: Topic, number: int) -> bool:
    """Whether the preferred replica does not lead but could: a sound member of the ISR that stays."""
    state, first = topic.states[number], topic.replicas[number][0]
    partition = TopicPartition(topic.name, number)
    if state.leader == first or first not in state.isr or is_leaving(image, first) or is_full(image, partition, first):
        return False
    return is_sound(image, state, first) and is_fit(image, partition, state, first)


def first_state(image: Image, replicas: Sequence[int]) -> PartitionState | None:
    """The first state of a new, empty partition: its live replicas are in sync; None without a live replica."""
    alive = [broker for broker in replicas if BrokerId(broker) in image.brokers]
    alive = [broker for broker in alive if not is_leaving(image, broker)] or alive
    if not alive:
        return None
    return PartitionState(
        leader=alive[0],
        leader_epoch=LeaderEpoch(0),
        isr=tuple(alive),
        isr_epochs=tuple(image.brokers[BrokerId(broker)].epoch for broker in alive),
        controller_epoch=image.controller_epoch,
    )


def is_sound(image: Image, state: PartitionState, broker: int) -> bool:
    """Whether a member of the ISR is alive and did not restart since it was added."""
    found = image.brokers.get(BrokerId(broker))
    return found is not None and found.epoch == state.registration_of(broker)


def is_leaving(image: Image, broker: int) -> bool:
    """Whether a broker is in controlled shutdown or fenced."""
    found = image.brokers.get(BrokerId(broker))
    return found is not None and found.leaving


def is_fenced(image: Image, broker: int) -> bool:
    """Whether a broker is alive but unreachable for most others. It also counts as one in controlled shutdown."""
    found = image.brokers.get(BrokerId(broker))
    return found is not None and found.fenced


def is_full(image: Image, partition: TopicPartition, broker: int) -> bool:
    """Whether the disk of a replica is full, so that it refuses producers."""
    found = image.brokers.get(BrokerId(broker))
    return found is not None and partition in found.full


def is_fit(image: Image, partition: TopicPartition, state: PartitionState | None, broker: int) -> bool:
    """Whether a replica of a live broker is healthy. After an unclean election its leader is, whatever it lacks."""
    found = image.brokers.get(BrokerId(broker))
    if found is None or partition in found.offline:
        return False
    return partition not in found.impaired or (state is not None and state.recovering and state.leader == broker)


@dataclass(frozen=True, slots=True)
class ElectionContext:
    """A partition that may need another state."""

    image: Image
    partition: TopicPartition
    state: PartitionState
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    options: TopicOptions

    @classmethod
    def of(cls, image: Image, topic: Topic, number: int, options: TopicOptions) -> Self:
        partition = TopicPartition(topic.name, number)
        return cls(image, partition, topic.states[number], topic.replicas[number], topic.adding.get(number, ()), options)

    @property
    def enough(self) -> int:
        """Minimum ISR to commit. Adding replicas do not change it."""
        return min(self.options.min_insync_replicas, len(self.replicas) - len(self.adding))

    # Its replicas.

    def sound(self, broker: int) -> bool:
        """In the ISR, assigned, alive since it was added, and healthy. A replica that is not assigned any more deletes its log."""
        if broker not in self.replicas:
            return False
        return is_sound(self.image, self.state, broker) and is_fit(self.image, self.partition, self.state, broker)

    def works(self, broker: int) -> bool:
        """Alive, with a working log directory."""
        found = self._registered(broker)
        return found is not None and self.partition not in found.offline

    def misses_records(self, broker: int) -> bool:
        found = self._registered(broker)
        return found is not None and self.partition in found.impaired

    def full(self, broker: int) -> bool:
        return is_full(self.image, self.partition, broker)

    def intact(self, broker: int, epoch: int) -> bool:
        """Works and has everything that it had under this registration."""
        found = self._registered(broker)
        if found is None or not is_fit(self.image, self.partition, self.state, broker):
            return False
        return found.epoch == epoch or not self.options.write_caching or 0 <= found.clean_since <= epoch

    def may_recover(self, broker: int) -> bool:
        """No replica certainly has all records: as in Kafka the last leader may lead, but not with a log that it knows to be damaged."""
        return self.works(broker) and not self.misses_records(broker)

    def held(self) -> dict[int, int]:
        """ISR members and eligible replicas, with the registration under which they counted."""
        state = self.state
        return {broker: state.eligible_since(broker) for broker in state.elr} | {
            broker: state.registration_of(broker) for broker in state.isr
        }

    def lost(self) -> set[int]:
        """Those of them that restarted and are not intact. A replica that is down may still be intact."""
        return {broker for broker, epoch in self.held().items() if self.works(broker) and not self.intact(broker, epoch)}

    @property
    def last_leader(self) -> int:
        """The last leader, if it is still a replica."""
        found = self.state.leader if self.state.leader >= 0 else self.state.last_leader
        return found if found in self.replicas else NO_LEADER

    def _registered(self, broker: int) -> Registration | None:
        return self.image.brokers.get(BrokerId(broker))

    # New states.

    def led_by(self, leader: int, isr: Sequence[int], *, same_epoch: bool = False) -> PartitionState:
        """A leader that has all committed records."""
        before = self.state
        elr = self.eligible_beside(isr)
        return PartitionState(
            leader=leader,
            leader_epoch=before.leader_epoch if same_epoch else LeaderEpoch(before.leader_epoch + 1),
            isr=tuple(isr),
            isr_epochs=tuple(self.image.brokers[BrokerId(broker)].epoch for broker in isr),
            controller_epoch=self.image.controller_epoch,
            recovering=before.recovering and leader == before.leader,
            elr=tuple(elr),
            elr_epochs=tuple(elr.values()),
            last_known_elr=self._last_known(isr, elr),
        )

    def recovered_by(self, leader: int) -> PartitionState:
        """A leader that may lack committed records: its log counts from now on, and there are no eligible replicas."""
        return PartitionState(
            leader=leader,
            leader_epoch=LeaderEpoch(self.state.leader_epoch + 1),
            isr=(leader,),
            isr_epochs=(self.image.brokers[BrokerId(leader)].epoch,),
            controller_epoch=self.image.controller_epoch,
            # A single replica needs no recovery; but only with this flag its broker leads if it knows that records are missing.
            recovering=len(self.replicas) > 1 or self.misses_records(leader),
        )

    def without_leader(self) -> PartitionState:
        before = self.state
        lost = self.lost()
        elr = {broker: before.eligible_since(broker) for broker in before.elr if broker in self.replicas and broker not in lost}
        return PartitionState(
            leader=NO_LEADER,
            leader_epoch=before.leader_epoch if before.leader == NO_LEADER else LeaderEpoch(before.leader_epoch + 1),
            isr=before.isr,
            isr_epochs=before.isr_epochs,
            controller_epoch=self.image.controller_epoch,
            recovering=before.recovering,
            elr=tuple(elr),
            elr_epochs=tuple(elr.values()),
            last_known_elr=self._last_known((), elr),
            last_leader=self.last_leader,
        )

    def eligible_beside(self, isr: Sequence[int]) -> dict[int, int]:
        """Eligible replicas with this ISR, with the registration under which they left."""
        if len(isr) >= self.enough:
            return {}
        held, lost = self.held(), self.lost()
        return {broker: held[broker] for broker in self.replicas if broker in held and broker not in isr and broker not in lost}

    def _last_known(self, isr: Sequence[int], elr: dict[int, int]) -> tuple[int, ...]:
        """Formerly eligible replicas that restarted and are not intact, until the ISR is large enough again."""
        if isr and len(isr) >= self.enough:
            return ()
        gone = self.lost() | set(self.state.last_known_elr)
        kept = [broker for broker in self.replicas if broker in gone and broker not in isr and broker not in elr]
        return tuple(broker for broker in kept if broker in self.state.elr or broker in self.state.last_known_elr or isr)

    def unless_same(self, after: PartitionState) -> PartitionState | None:
        """None if only the controller epoch would change."""
        before = self.state
        same = (
            after.leader == before.leader
            and after.leader_epoch == before.leader_epoch
            and after.isr == before.isr
            and after.isr_epochs == before.isr_epochs
            and set(after.elr) == set(before.elr)
            and set(after.last_known_elr) == set(before.last_known_elr)
        )
        return None if same else after
