"""Creates and deletes topics in as many multis as needed; most need one. See ``topics.py`` for the steps.

The controller that started continues until the topic is complete or deleted, and then reports. If it fails before, the next controller
finds partitions without a state, which get one from the election queue, and topics marked for deletion, which it deletes. A topic that a
tool marks is deleted the same way, unless delete.topic.enable forbids it.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from ottla.base.log_levels import CONTROLLER
from ottla.base.ports import Op, StoreResult
from ottla.broker.context import BrokerContext
from ottla.broker.controller.fenced_writes import FencedWrites
from ottla.broker.controller.topics import deletion, first_states, stateless
from ottla.broker.isolation import indivisible
from ottla.store import layout

Done = Callable[[StoreResult], None]
#: Calls back when the logs of a topic are open.
WhenOpened = Callable[[str, Callable[[], None]], None]
#: Consecutive conflicts after which a deletion is abandoned: there is an unexpected node below the topic.
FAILURES_MAX = 20


class TopicWriteBatcher:
    """Creation and deletion of topics in steps."""

    def __init__(self, context: BrokerContext, writes: FencedWrites, when_opened: WhenOpened) -> None:
        self._context = context
        self._writes = writes
        self._when_opened = when_opened
        #: Topics that are being created or expanded in steps.
        self.growing: set[str] = set()
        #: Topics that are being deleted, with the callbacks of waiting requests.
        self._deleting: dict[str, list[Done]] = {}

    def resume(self) -> None:
        """This broker was elected: continues what other controllers started."""
        for name in list(self._context.image.deleting):
            self.marked(name)

    # Creation and growth.

    @indivisible
    def create(self, name: str, ops: Sequence[Op], done: Done) -> None:
        """Writes ``ops``, which create or expand a topic; ``done`` gets the result when all its partitions have a state, or an error."""
        self.growing.add(name)
        self._writes.write(ops, partial(self._grown, name, done, False))

    def _grown(self, name: str, done: Done, begun: bool, result: StoreResult) -> None:
        """A multi was executed; ``begun`` unless it was the first one. Writes the next one, or reports."""
        image = self._context.image
        # A topic that is being deleted is not expanded: the two would undo each other's steps for ever.
        topic = image.topics.get(name) if name not in self._deleting else None
        more: list[Op] = []
        if topic is not None and (result.error is None or (begun and _overtaken(result))):
            more, result = first_states(name, stateless(topic), image), StoreResult()
        elif begun and _overtaken(result):
            # It was created, and deleted meanwhile.
            result = StoreResult()
        if more:
            self._writes.write(more, partial(self._grown, name, done, True))
        else:
            self.growing.discard(name)
            # Clients use a topic at once; and a client that creates thousands of topics continues as fast as their logs are created.
            self._when_opened(name, partial(self._end, result, (done,)))

    # Deletion.

    def marked(self, name: str) -> None:
        """A topic was marked for deletion, by a controller or a tool."""
        context = self._context
        if not self._writes.active or name in self._deleting:
            return
        topic = context.image.topics.get(name)
        if topic is not None and (context.options.delete_topic_enable or stateless(topic)):
            # A deletion that started is completed, whatever the setting is here.
            self.delete(name, lambda result: None)
        else:
            if topic is not None:
                context.log.warn(CONTROLLER, f"topic {name!r} is marked for deletion, but delete.topic.enable is false")
            self._writes.write((Op("delete", layout.deleted_topic(name)),), lambda result: None)

    @indivisible
    def delete(self, name: str, done: Done) -> None:
        """Deletes a topic; ``done`` gets the result."""
        waiting = self._deleting.get(name)
        if waiting is not None:
            waiting.append(done)
            return
        self._deleting[name] = [done]
        self._step(name, StoreResult(), 0)

    def _step(self, name: str, before: StoreResult, failures: int) -> None:
        """``before`` is the result of the last step, ``failures`` the number of consecutive conflicts."""
        topic = self._context.image.topics.get(name)
        failures = failures + 1 if before.error is not None else 0
        if topic is None or (before.error is not None and not _overtaken(before)) or failures > FAILURES_MAX:
            self._end(before if topic is not None else StoreResult(), self._deleting.pop(name, ()))
            return
        step = deletion(topic, self._context.image)
        self._writes.write(step, lambda result: self._step(name, result, failures))

    def _end(self, result: StoreResult, callbacks: Iterable[Done]) -> None:
        if result.error == "unavailable":
            # The next tick continues.
            self._writes.retry = True
        for done in callbacks:
            done(result)


def _overtaken(result: StoreResult) -> bool:
    """Whether a step conflicted with another change; the image has it by now."""
    return result.failed_op >= 0 and result.error in ("missing", "exists", "not_empty", "version")
