"""Resolves the hosts of registered brokers, for ``broker/registration/peers.py``.

A host is resolved when a registration changes, and again every ``AGAIN_S``: a broker can move to another address under the same name. A
host that cannot be resolved keeps its last addresses.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from ottla.broker.events import PeersResolved
from ottla.broker.registration.peers import ANY, entries, network_of

log = logging.getLogger("ottla.server")

AGAIN_S = 10.0


class PeerResolver:
    """Resolves in the background, one round at a time."""

    def __init__(self, setting: str, registered: Callable[[], Iterable[str]], resolved: Callable[[PeersResolved], None]) -> None:
        """``setting``: ottla.peers.hosts. ``registered``: hosts of all registrations. ``resolved`` gets changed addresses."""
        self._configured = [entry for entry in entries(setting) if entry != ANY and network_of(entry) is None]
        self._registered = registered
        self._resolved = resolved
        #: Last addresses of each host.
        self._known: dict[str, tuple[str, ...]] = {}
        self._told: frozenset[str] | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._changed = False
        self._stopped = False

    def look(self) -> None:
        """A registration changed, or it is time to resolve again."""
        self._changed = True
        if self._task is None and not self._stopped:
            if self._timer is not None:
                self._timer.cancel()
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Resolves nothing any more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while self._changed:
            self._changed = False
            hosts = {*self._registered(), *self._configured}
            self._known = {host: await self._resolve(host) for host in sorted(hosts)}
            addresses = frozenset(address for found in self._known.values() for address in found)
            if addresses != self._told:
                self._told = addresses
                self._resolved(PeersResolved(addresses=tuple(sorted(addresses))))
        self._task = None
        if any(network_of(host) is None for host in self._known):
            self._timer = asyncio.get_running_loop().call_later(AGAIN_S, self.look)

    async def _resolve(self, host: str) -> tuple[str, ...]:
        if network_of(host) is not None:
            return (host,)
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, None)
        except (OSError, UnicodeError) as error:
            if host not in self._known:
                log.warning("the address of broker host %s is unknown, its requests as a broker are refused: %s", host, error)
            return self._known.get(host, ())
        return tuple(sorted({str(address[0]) for _, _, _, _, address in found}))
