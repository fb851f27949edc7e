"""Store writes that only the controller can make.

Each is one ``multi`` with a check of the version of ``/controller_epoch``, which every new controller increments: a write of a deposed
controller fails as a whole. Source: KAFKA-6082.
"""

from collections.abc import Callable, Sequence

from ottla.base.ports import Op, StoreResult
from ottla.broker.context import BrokerContext
from ottla.store import layout


class FencedWrites:
    """Writes of this broker as controller."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        #: Whether this broker is the controller, as far as it knows.
        self.active = False
        #: Version of /controller_epoch that writes are conditional on.
        self.version = -1
        #: The store did not answer: the next tick of the controller evaluates everything.
        self.retry = False

    def write(self, ops: Sequence[Op], done: Callable[[StoreResult], None]) -> None:
        """Writes ``ops``. ``done`` gets the result, with ``failed_op`` relative to ``ops``; -1: this broker is no longer the controller."""
        fence = Op("check", layout.CONTROLLER_EPOCH, version=self.version)

        def answered(result: StoreResult) -> None:
            if result.error is None:
                done(StoreResult(states=result.states[1:]))
            else:
                done(StoreResult(error=result.error, failed_op=result.failed_op - 1))

        self._context.submit((fence, *ops), answered)
