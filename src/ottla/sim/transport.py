"""The host's end of a simulated connection, as an asyncio transport under the server's own ``ServerConnection``.

Bytes arrive in pieces of random size. Each piece is overwritten after the protocol has seen it, as the next read of a real server does.
"""

import asyncio
from random import Random
from typing import Any

from ottla.net.connection_context import ConnectionContext
from ottla.net.server_connection import PREFIX, ServerConnection
from ottla.sim.event_loop import ProcessLoop
from ottla.sim.network import Connection

#: How often received bytes are split.
SPLIT = 0.1


class HostTransport(asyncio.Transport):
    def __init__(
        self,
        loop: ProcessLoop,
        connection: Connection,
        protocol: ServerConnection,
        context: ConnectionContext,
        *,
        address: tuple[str, int],
        rng: Random,
    ) -> None:
        """Connects ``protocol``. ``address`` is the local one."""
        super().__init__()
        self._loop = loop
        self._connection = connection
        self._protocol = protocol
        self._scratch = context.scratch
        self._address = address
        self._rng = rng
        self._received = bytearray()
        self._paused = False
        self._pumping = False
        self._lost = False
        self._unsent = bytearray()
        protocol.connection_made(self)

    # Called by the machine

    def deliver(self, data: bytes) -> None:
        """Bytes arrive."""
        self._received += data
        if not self._pumping:
            self._pump()

    def lose(self) -> None:
        """The connection broke, or was closed by either end."""
        if not self._lost:
            self._lost = True
            self._loop.call_soon(self._protocol.connection_lost, None)

    def _pump(self) -> None:
        """Passes one piece to the protocol, as one turn of a real loop does."""
        self._pumping = False
        if self._lost or self._paused or not self._received:
            return
        buffer = self._protocol.get_buffer(-1)
        size = min(len(buffer), len(self._received))
        if self._rng.random() < SPLIT:
            size = self._rng.randint(1, size)
        buffer[:size] = self._received[:size]
        del self._received[:size]
        self._protocol.buffer_updated(size)
        if buffer.obj is self._scratch.obj:
            buffer[:size] = bytes(size)
        if self._received:
            self._pump_soon()

    def _pump_soon(self) -> None:
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._pump)

    # Called by the protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._address if name == "sockname" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The network takes every byte at once."""

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._pump_soon()

    def write(self, data: Any) -> None:
        self._unsent += data
        while len(self._unsent) >= PREFIX.size and len(self._unsent) >= (end := PREFIX.size + PREFIX.unpack_from(self._unsent)[0]):
            if not self._lost:
                self._connection.reply(self._unsent[PREFIX.size : end])
            del self._unsent[:end]

    def close(self) -> None:
        self._connection.break_off()

    abort = close
