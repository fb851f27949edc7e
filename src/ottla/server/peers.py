"""How a broker asks another one: in the same process directly, in another over the network, with the request as the client made it.

A far broker answers as if a client had asked; the name under which it is asked (``PEER``) keeps it from handing the request on. One
connection to each serves for all requests and is opened when it is needed. Whoever cannot be reached, or breaks off, has given no answer:
whether it did what was asked is not known.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ottla.base.ids import BrokerId
from ottla.base.units import MiB
from ottla.broker.node import FORWARD_MS, PEER
from ottla.net.link import Link, LinkBroken, open_link

if TYPE_CHECKING:
    from ottla.server.shell import Shell

CONNECT_MS = 10_000
#: No answer of a controller comes near it.
FRAME_BYTES_MAX = 100 * MiB

Address = tuple[str, int]


class Peers:
    """The other brokers, as one of them reaches them."""

    def __init__(self, shells: Mapping[BrokerId, "Shell"], address_of: Callable[[BrokerId], Address | None]) -> None:
        """``shells`` are the brokers of this process; ``address_of`` tells where another one is registered."""
        self._shells = shells
        self._address_of = address_of
        self._links: dict[BrokerId, tuple[Address, asyncio.Task[Link]]] = {}
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
        for task in [*self._tasks, *(opening for _, opening in self._links.values())]:
            if task.done():
                if not task.cancelled() and isinstance(link := task.exception() or task.result(), Link):
                    link.close()
            else:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask(self, broker: BrokerId, message: Any, version: int, answered: Callable[[Any], None]) -> None:
        answer = None
        try:
            link = await self._link(broker)
            if link is not None:
                answer = await link.request(message, version, timeout_ms=FORWARD_MS)
        except LinkBroken:
            answer = None
        answered(answer)

    async def _link(self, broker: BrokerId) -> Link | None:
        """The connection to a broker. Raises: LinkBroken."""
        address = self._address_of(broker)
        if address is None:
            return None
        held = self._links.get(broker)
        if held is None or held[0] != address or (held[1].done() and _broken(held[1])):
            if held is not None and held[1].done() and not _broken(held[1]):
                held[1].result().close()
            opening = asyncio.get_running_loop().create_task(_open(address))
            held = self._links[broker] = (address, opening)
        # One that gives up does not take the connection from the others.
        return await asyncio.shield(held[1])


def _broken(opened: "asyncio.Task[Link]") -> bool:
    return opened.cancelled() or opened.exception() is not None or opened.result().broken is not None


async def _open(address: Address) -> Link:
    return await open_link(*address, client_id=PEER, frame_bytes_max=FRAME_BYTES_MAX, timeout_ms=CONNECT_MS, lost=lambda why: None)
