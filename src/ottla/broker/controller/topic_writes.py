"""Topics come and go, in as many multis as they need; most need one. See ``topics.py`` for the steps.

The controller that began goes on until the topic is whole, or gone, and then says so. Should it not live to do that, the next one finds
partitions without a state, which its agenda gives them, and topics marked for deletion, which it goes on to delete. A topic that an
operator's tool marks is deleted the same way, unless delete.topic.enable forbids it.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ottla.base.ports import Op, StoreResult
from ottla.broker import effects
from ottla.broker.controller.topics import deletion, first_states, stateless
from ottla.broker.isolation import indivisible
from ottla.store import layout

if TYPE_CHECKING:
    from ottla.broker.node import Node

Done = Callable[[StoreResult], None]
#: Steps in a row that may be overtaken before a deletion is given up: something is below the topic that nobody can explain.
FAILURES_MAX = 20


class Stepwise:
    """See the module's theory."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        #: Topics that are being created or are growing in steps.
        self.growing: set[str] = set()
        #: Topics that are being deleted, and who waits for that.
        self._deleting: dict[str, list[Done]] = {}

    def resume(self) -> None:
        """The office is ours: go on with what others began."""
        for name in list(self._node.image.deleting):
            self.marked(name)

    # Creation and growth.

    @indivisible
    def create(self, name: str, ops: Sequence[Op], done: Done) -> None:
        """Write ``ops``, which begin a topic or add to one; ``done`` hears when all its partitions have a state, or what went wrong."""
        self.growing.add(name)
        image = self._node.image

        def written(result: StoreResult, *, begun: bool = True) -> None:
            # What is being deleted grows no more: each of the two would undo the other's steps for ever.
            topic = image.topics.get(name) if name not in self._deleting else None
            more: list[Op] = []
            if topic is not None and (result.error is None or (begun and _overtaken(result))):
                more, result = first_states(name, stateless(topic), image), StoreResult()
            elif begun and _overtaken(result):
                # It was begun, and somebody has deleted it meanwhile.
                result = StoreResult()
            if more:
                self._node.controller.write(more, written)
            else:
                self.growing.discard(name)
                # Clients come as soon as they are answered; and who creates thousands of topics goes on as fast as their logs are made.
                self._node.partitions.files.when_opened(name, lambda: self._end(result, (done,)))

        self._node.controller.write(ops, partial(written, begun=False))

    # Deletion.

    def marked(self, name: str) -> None:
        """A topic is marked for deletion, by us or by an operator's tool."""
        node = self._node
        if not node.controller.active or name in self._deleting:
            return
        topic = node.image.topics.get(name)
        if topic is not None and (node.options.delete_topic_enable or stateless(topic)):
            # What has begun is ended, whatever is enabled here.
            self.delete(name, lambda result: None)
        else:
            if topic is not None:
                node.effects.append(effects.Warn(message=f"topic {name!r} is marked for deletion, but delete.topic.enable is false"))
            node.controller.write((Op("delete", layout.deleted_topic(name)),), lambda result: None)

    @indivisible
    def delete(self, name: str, done: Done) -> None:
        """Make a topic go; ``done`` hears when it has gone, or what went wrong."""
        waiting = self._deleting.get(name)
        if waiting is not None:
            waiting.append(done)
            return
        self._deleting[name] = [done]
        self._step(name, StoreResult(), 0)

    def _step(self, name: str, before: StoreResult, failures: int) -> None:
        """``before`` is the outcome of the last step, ``failures`` how many in a row were overtaken by what others did."""
        topic = self._node.image.topics.get(name)
        failures = failures + 1 if before.error is not None else 0
        if topic is None or (before.error is not None and not _overtaken(before)) or failures > FAILURES_MAX:
            self._end(before if topic is not None else StoreResult(), self._deleting.pop(name, ()))
            return
        step = deletion(topic, self._node.image)
        self._node.controller.write(step, lambda result: self._step(name, result, failures))

    def _end(self, result: StoreResult, told: Iterable[Done]) -> None:
        if result.error == "unavailable":
            # What was begun is ended with the next tick.
            self._node.controller.try_again()
        for done in told:
            done(result)


def _overtaken(result: StoreResult) -> bool:
    """Whether a step met what somebody else had done first; the image shows it by now."""
    return result.failed_op >= 0 and result.error in ("missing", "exists", "not_empty", "version")
