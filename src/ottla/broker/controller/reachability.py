"""Detects an unreachable controller. A controller that most brokers cannot reach resigns and is fenced, although its store session lives.

The controller reads and writes the store and needs no broker. But leaders send it ISR changes, and clients' admin requests go to it. A
store session proves nothing about these links. So every broker sends the controller empty requests as heartbeats::

    every HEARTBEAT_MS; every second while requests fail at once
        │ no answer for UNHEARD_MS, to at least UNANSWERED_MIN requests
        ▼
    the broker's registration has the epoch of this controller (``unreachable_controller_epoch``)
        │ most live brokers report it, for GRACE_TICKS ticks of the controller
        ▼
    the controller deletes /controller and sets ``fenced`` in its own registration, in one multi
        │ the next controller moves leadership away from a fenced broker and removes it from ISRs, as in a controlled shutdown
        ▼
    brokers that reported it continue to send heartbeats to the fenced broker, until it answers
        │ most live brokers do not report it any more
        ▼
    the broker removes ``fenced``; it may lead, join ISRs and be the controller again

**A starved broker proves nothing.** A broker without CPU time misses answers that have arrived. So silence is counted in ticks that ran,
at most one second each, and ends with any answer, even a late one. A controller without CPU time answers the waiting heartbeats before
GRACE_TICKS have passed; then it is not reported any more.

**Most live brokers**, including the controller: of two brokers that do not reach each other neither resigns, and a broker that is cut off
itself changes nothing. A minority of the live brokers may be fenced at a time. If no broker reaches any other, controllers change and later
ones resign without being fenced.

Source: KIP-631 for fencing and heartbeats (broker.heartbeat.interval.ms=2000). Kafka with ZooKeeper has no such mechanism.
"""

from collections import Counter
from typing import Any

from ottla.base.ids import BrokerId
from ottla.base.log_levels import CONTROLLER
from ottla.base.ports import Op, StoreResult
from ottla.base.units import SECOND_MS
from ottla.broker.context import BrokerContext
from ottla.broker.controller.fenced_writes import FencedWrites
from ottla.broker.registration.registration import NO_EPOCH, Registration
from ottla.store import layout
from ottla.wire.messages.alter_partition import AlterPartitionRequest

#: Interval of heartbeats to a controller that answers, as in Kafka.
HEARTBEAT_MS = 2 * SECOND_MS
#: A controller without an answer for this time is unreachable. It is also the timeout of a heartbeat: a late answer counts.
UNHEARD_MS = 6 * SECOND_MS
#: Unanswered heartbeats of one broker at a time.
HEARTBEATS_MAX = 3
#: One request may have failed together with the former controller or connection.
UNANSWERED_MIN = 2
#: Maximum time that a tick counts; ticks come every second.
TICK_MS = SECOND_MS
#: Ticks for which most brokers must report the controller before it resigns, or must not report a fenced broker before fencing ends.
GRACE_TICKS = 2
#: A report about a controller that resigned is kept for this many ticks until its registration is fenced.
FENCED_WITHIN_TICKS = 3
VERSION = 3
#: After resigning, a broker is not a candidate for this time.
HOLD_MS = 5 * SECOND_MS


class ControllerReachability:
    """Heartbeats to the controller, reports, resignation and fencing."""

    def __init__(self, context: BrokerContext, writes: FencedWrites, registration: Registration) -> None:
        self._context = context
        self._writes = writes
        self._registration = registration
        registration.reachability = lambda: (self.unheard, self.fenced)
        #: Epoch of the unreachable controller, for the registration; NO_EPOCH while it answers.
        self.unheard = NO_EPOCH
        #: The controller of that epoch.
        self._unreached = BrokerId(NO_EPOCH)
        #: Ticks since that broker was controller, while it is not registered as fenced.
        self._unfenced_ticks = 0
        #: Time without an answer of the present controller, and failed requests since its last answer.
        self._silent_ms = 0
        self._failed = 0
        #: Time of the next heartbeat.
        self._due_ms = 0
        self._ticked_ms = context.now_ms
        #: Unanswered heartbeats by broker.
        self._waiting: Counter[BrokerId] = Counter()
        #: Epoch from which this broker resigned, while it is fenced; else NO_EPOCH.
        self.fenced_epoch = NO_EPOCH
        #: Whether most brokers report this broker, and for how many ticks.
        self._most = False
        self._ticks = 0
        #: The state in the registration as confirmed by the store; None if unknown.
        self._told: tuple[int, int] | None = (NO_EPOCH, NO_EPOCH)
        self._telling = False
        #: Until then this broker is not a candidate.
        self.hold_ms = 0
        self._resigning = False

    @property
    def fenced(self) -> bool:
        """Whether the registration must say that this broker is fenced."""
        return self.fenced_epoch != NO_EPOCH

    def asked(self, controller: BrokerId, *, answered: bool) -> None:
        """A request to this controller was answered, or timed out."""
        if controller == self._context.broker_id or controller != self._context.image.controller:
            return
        if answered:
            self._silent_ms = self._failed = 0
            if self._unreached == controller:
                self.unheard = NO_EPOCH
                self._tell()
        else:
            self._failed += 1

    def tick(self) -> None:
        """Sends heartbeats, and decides from answers and registrations."""
        context = self._context
        ran_ms = min(context.now_ms - self._ticked_ms, TICK_MS)
        self._ticked_ms = context.now_ms
        if context.epoch is None or context.stopping or not context.connected:
            self._silent_ms = self._failed = self._ticks = 0
            return
        self._watch_controller(ran_ms)
        self._watch_fenced()
        self._count_reports()
        self._tell()

    def _watch_controller(self, ran_ms: int) -> None:
        context = self._context
        controller = context.image.controller
        if controller is None or controller == context.broker_id:
            return
        if self._failed or self._waiting[controller]:
            self._silent_ms += ran_ms
        if self._silent_ms >= UNHEARD_MS and self._failed + self._waiting[controller] >= UNANSWERED_MIN:
            self.unheard, self._unreached = context.image.controller_epoch, controller
        if self._failed or context.now_ms >= self._due_ms:
            self._due_ms = context.now_ms + HEARTBEAT_MS
            self._heartbeat(controller)

    def _watch_fenced(self) -> None:
        """Checks whether a broker that resigned is reachable again."""
        context = self._context
        if self.unheard == NO_EPOCH or self._unreached == context.image.controller:
            return
        found = context.image.brokers.get(self._unreached)
        self._unfenced_ticks = 0 if found is not None and found.fenced else self._unfenced_ticks + 1
        if self._unfenced_ticks > FENCED_WITHIN_TICKS:
            self.unheard = NO_EPOCH
        else:
            self._heartbeat(self._unreached)

    def _heartbeat(self, broker: BrokerId) -> None:
        context = self._context
        if self._waiting[broker] >= HEARTBEATS_MAX or context.epoch is None:
            return
        self._waiting[broker] += 1

        def answered(response: Any) -> None:
            self._waiting[broker] -= 1
            if broker == context.image.controller:
                self.asked(broker, answered=response is not None)
            elif response is not None and broker == self._unreached:
                self.unheard = NO_EPOCH
                self._tell()

        nothing = AlterPartitionRequest(broker_id=context.broker_id, broker_epoch=context.epoch, topics=[])
        context.ask(broker, nothing, version=VERSION, timeout_ms=UNHEARD_MS, done=answered)

    def registered(self) -> None:
        """A registration with the present state was created."""
        self._told = (self.unheard, self.fenced_epoch)

    def controller_changed(self) -> None:
        """The controller changed. A report about the former one stays until it answers."""
        self._silent_ms = self._failed = self._ticks = self._unfenced_ticks = 0
        self._resigning = False
        if self._unreached == self._context.image.controller:
            # A new epoch of the same broker: it must be found unreachable again.
            self.unheard = NO_EPOCH

    def _count_reports(self) -> None:
        """Resigns when most brokers reported this controller for long enough; ends fencing when they do not any more."""
        context = self._context
        active = self._writes.active
        if not active and not self.fenced:
            return
        epoch = context.image.controller_epoch if active else self.fenced_epoch
        naming = [broker for broker, found in context.image.brokers.items() if found.unheard == epoch]
        most = len(naming) * 2 > len(context.image.brokers)
        self._ticks = self._ticks + 1 if most == self._most else 1
        self._most = most
        if self._ticks < GRACE_TICKS:
            return
        if active and most:
            self._resign(naming)
        elif self.fenced and not most:
            self.fenced_epoch = NO_EPOCH
            context.log.warn(CONTROLLER, f"broker {context.broker_id} is reachable for most brokers again and no longer fenced")

    def _resign(self, naming: list[BrokerId]) -> None:
        context, image = self._context, self._context.image
        if self._resigning or self._telling:
            # The next tick retries.
            return
        self._resigning = True
        self.hold_ms = context.now_ms + HOLD_MS
        others = [broker for broker, found in image.brokers.items() if found.fenced and broker != context.broker_id]
        if (len(others) + 1) * 2 < len(image.brokers):
            self.fenced_epoch = image.controller_epoch
        what = "resigns as controller and is fenced" if self.fenced else "resigns as controller"
        context.log.warn(CONTROLLER, f"broker {context.broker_id} {what}: brokers {naming} cannot reach it; check their network links")
        telling = (self.unheard, self.fenced_epoch)
        described = self._registration.updated()

        def resigned(result: StoreResult) -> None:
            self._resigning = False
            if result.error is None and described:
                self._told = telling
            elif result.error in ("unavailable", "session"):
                # The content of the registration is unknown.
                self._told = None

        self._writes.write((Op("delete", layout.CONTROLLER), *described), resigned)

    def _tell(self) -> None:
        now = (self.unheard, self.fenced_epoch)
        ops = self._registration.updated() if now != self._told and not self._telling and not self._resigning else ()
        if not ops:
            return
        self._telling = True

        def told(result: StoreResult) -> None:
            self._telling = False
            if result.error is None:
                self._told = now
            if result.error in (None, "version"):
                self._tell()

        self._context.submit(ops, told)
