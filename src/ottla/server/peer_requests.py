"""How a broker asks another one: in the same process directly, in another over the network, with the request as the client made it.

A far broker answers as if a client had asked; the name under which it is asked (``PEER``) keeps it from handing the request on. Whoever
cannot be reached, or breaks off, has given no answer: whether it did what was asked is not known.

A broker takes up one request of a connection after the other. A follower's fetch waits there for records, and what a client has handed on
may wait for the store; a change of an ISR must not wait behind them. So requests of each kind have connections of their own, opened when
they are needed, and none waits for another while fewer than ``CONNECTIONS_MAX`` are there; of fetches there are no more than fetchers.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ottla.base.ids import BrokerId
from ottla.base.units import MiB
from ottla.broker.node import FORWARD_MS, PEER
from ottla.net.client_connection import Link, LinkBroken, open_link
from ottla.wire.messages.fetch import FetchRequest

if TYPE_CHECKING:
    from ottla.server.shell import Shell

CONNECT_MS = 10_000
#: To one broker, for requests of one kind.
CONNECTIONS_MAX = 8
#: No answer of a controller comes near it.
FRAME_BYTES_MAX = 100 * MiB

Address = tuple[str, int]


class _Line:
    """A connection to a broker, there or being opened."""

    __slots__ = ("address", "opening", "waiting")

    def __init__(self, address: Address) -> None:
        self.address = address
        self.opening = asyncio.get_running_loop().create_task(_open(address))
        #: Requests that wait for it, or for their answer.
        self.waiting = 0

    @property
    def broken(self) -> bool:
        opened = self.opening
        return opened.done() and (opened.cancelled() or opened.exception() is not None or opened.result().broken is not None)

    def close(self) -> None:
        if not self.opening.done():
            self.opening.cancel()
        elif not self.broken:
            self.opening.result().close()


class Peers:
    """The other brokers, as one of them reaches them."""

    def __init__(self, shells: Mapping[BrokerId, "Shell"], address_of: Callable[[BrokerId], Address | None]) -> None:
        """``shells`` are the brokers of this process; ``address_of`` tells where another one is registered."""
        self._shells = shells
        self._address_of = address_of
        #: By broker and kind of request.
        self._lines: dict[tuple[BrokerId, type[Any]], list[_Line]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, broker: BrokerId, message: Any, version: int, answered: Callable[[Any], None]) -> None:
        """Sends a request to a broker; ``answered`` gets the response in a later turn of the loop, None when there is none."""
        loop = asyncio.get_running_loop()
        near = self._shells.get(broker)
        if near is not None:
            loop.call_soon(near.asked, message, version, answered)
            return
        task = loop.create_task(self._ask(broker, message, version, answered))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Breaks all connections; what was asked gets no answer."""
        for task in self._tasks:
            task.cancel()
        for line in [line for lines in self._lines.values() for line in lines]:
            line.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask(self, broker: BrokerId, message: Any, version: int, answered: Callable[[Any], None]) -> None:
        answer = None
        line = self._line(broker, type(message))
        if line is not None:
            line.waiting += 1
            try:
                # One that gives up does not take the connection from the others.
                link = await asyncio.shield(line.opening)
                answer = await link.request(message, version, timeout_ms=FORWARD_MS)
            except LinkBroken:
                answer = None
            finally:
                line.waiting -= 1
        answered(answer)

    def _line(self, broker: BrokerId, kind: type[Any]) -> _Line | None:
        """One that nobody waits for, if there may be; None when the broker is not registered."""
        address = self._address_of(broker)
        if address is None:
            return None
        known = self._lines.setdefault((broker, kind), [])
        for line in [line for line in known if line.broken or line.address != address]:
            known.remove(line)
            line.close()
        best = min(known, key=lambda line: line.waiting, default=None)
        if best is None or (best.waiting and (kind is FetchRequest or len(known) < CONNECTIONS_MAX)):
            best = _Line(address)
            known.append(best)
        return best


async def _open(address: Address) -> Link:
    return await open_link(*address, client_id=PEER, frame_bytes_max=FRAME_BYTES_MAX, timeout_ms=CONNECT_MS, lost=lambda why: None)
