"""Whether the controller hears the brokers: one that is cut off from them, and not from the store, gives up its office.

A controller learns everything from the store and tells everything by it, so it need not reach anybody. But leaders must reach it, to have
their ISRs changed, and so must whoever creates topics. A session with the store says nothing of that::

    a change of an ISR is not answered, nor is anything that is asked after that, for UNHEARD_MS
        ──▶ the leader's registration names the epoch of the controller that does not answer
    the others read that, and ask for nothing themselves, in vain for UNHEARD_MS
        ──▶ theirs name it too
    most of the live brokers name the epoch of this office
        ──▶ the controller resigns, and leaves the office to others for HOLD_MS

Most of the live brokers, the controller among them: so of two that do not reach each other none gives way, and a broker that is cut off
itself does not change who is controller. Where nobody reaches anybody the office goes round, once in UNHEARD_MS at most; no other could
do better then. From the first silence on the controller is asked for nothing every second, until it answers or is another: so what a
registration says of it is as true as what was heard last. Kafka with ZooKeeper has nothing like it: such a controller stays until somebody
stops it.
"""

from typing import TYPE_CHECKING, Any

from ottla.base.ids import BrokerId
from ottla.base.ports import Op, StoreResult
from ottla.base.units import SECOND_MS
from ottla.broker import effects
from ottla.store import layout
from ottla.wire.messages.alter_partition import AlterPartitionRequest

if TYPE_CHECKING:
    from ottla.broker.node import Node

#: Without an answer for so long, the controller is not reached. A first try may have failed with the controller before.
UNHEARD_MS = 10 * SECOND_MS
#: The time for an answer to nothing.
PATIENCE_MS = 5 * SECOND_MS
VERSION = 3
#: After a controller resigned, others have so long before it wants the office again.
HOLD_MS = 5 * SECOND_MS
NOBODY = -1


class Hearing:
    """See the module's theory."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        #: Epoch of the controller that does not answer, as our registration is to say.
        self.unheard = NOBODY
        #: The controller that was asked in vain, and since when; None while it answers.
        self._silent: tuple[BrokerId, int] | None = None
        #: Another broker does not reach the controller: do we?
        self._doubtful = False
        self._asking = False
        self._telling = False
        #: As our registration says, as far as the store has confirmed it.
        self._told = NOBODY
        #: Until then the office is for others.
        self.hold_ms = 0
        self._resigning = False

    def asked(self, controller: BrokerId, *, answered: bool) -> None:
        """A request to this controller was answered, or was not in its time."""
        node = self._node
        if controller == node.broker_id or controller != node.image.controller:
            return
        self._doubtful = False
        if answered:
            self._silent, self.unheard = None, NOBODY
        elif self._silent is None or self._silent[0] != controller:
            self._silent = (controller, node.now_ms)
        elif node.now_ms - self._silent[1] >= UNHEARD_MS:
            self.unheard = node.image.controller_epoch
        self._tell()

    def tick(self) -> None:
        """Time passed: ask a controller that did not answer whether it is there."""
        node = self._node
        controller = node.image.controller
        if controller is None or not (self._doubtful or self._silent) or self._asking or node.epoch is None or node.stopping:
            return
        self._asking = True

        def answered(response: Any) -> None:
            self._asking = False
            self.asked(controller, answered=response is not None)

        nothing = AlterPartitionRequest(broker_id=node.broker_id, broker_epoch=node.epoch, topics=[])
        node.ask(controller, nothing, version=VERSION, timeout_ms=PATIENCE_MS, done=answered)

    def registered(self) -> None:
        """A registration was made, which says what is so now."""
        self._told = self.unheard

    def office_changed(self) -> None:
        """Another broker is controller now, or nobody; what is known of the one before counts no more."""
        self._silent, self.unheard, self._doubtful, self._resigning = None, NOBODY, False, False

    def look(self) -> None:
        """A registration changed: the controller may have to go."""
        node, image = self._node, self._node.image
        deaf = [broker for broker, found in image.brokers.items() if found.unheard == image.controller_epoch]
        if not node.controller.active:
            self._doubtful |= bool(deaf)
        elif len(deaf) * 2 > len(image.brokers) and not self._resigning:
            self._resigning = True
            self.hold_ms = node.now_ms + HOLD_MS
            node.effects.append(
                effects.Warn(message=f"broker {node.broker_id} gives up the controller's office: brokers {deaf} cannot reach it")
            )
            node.controller.write((Op("delete", layout.CONTROLLER),), self._resigned)

    def _resigned(self, result: StoreResult) -> None:
        self._resigning = False

    def _tell(self) -> None:
        ops = self._node.standing.redescribed() if self.unheard != self._told and not self._telling else ()
        if not ops:
            return
        self._telling = True
        telling = self.unheard

        def told(result: StoreResult) -> None:
            self._telling = False
            if result.error is None:
                self._told = telling
            if result.error in (None, "version"):
                self._tell()

        self._node.submit(ops, told)
