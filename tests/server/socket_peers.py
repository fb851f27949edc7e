"""A raw client and a handler for socket tests."""

import asyncio
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from ottla.net.connection_context import ConnectionContext, Limits
from ottla.net.listener import Listener, bound_socket
from ottla.net.server_connection import ServerConnection


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


class Peer:
    """A client socket on the test's loop."""

    def __init__(self, *, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.setblocking(False)
        self.loop = asyncio.get_running_loop()

    @classmethod
    async def connected(cls, address: tuple[str, int], *, receive_buffer: int | None = None) -> "Peer":
        peer = cls(receive_buffer=receive_buffer)
        await peer.loop.sock_connect(peer.socket, address)
        return peer

    async def send(self, data: bytes) -> None:
        await self.loop.sock_sendall(self.socket, data)

    async def ask(self, payload: bytes) -> bytes:
        await self.send(framed(payload))
        return await self.frame()

    async def read(self, size: int) -> bytes:
        """Raises EOFError when the other side closes before that."""
        data = bytearray()
        while len(data) < size:
            got = await self.loop.sock_recv(self.socket, min(size - len(data), 1 << 20))
            if not got:
                raise EOFError(f"closed after {len(data)} of {size} bytes")
            data += got
        return bytes(data)

    async def frame(self) -> bytes:
        return await self.read(struct.unpack(">i", await self.read(4))[0])

    async def closed(self) -> bool:
        """Waits until the other side closes; False when it sends something first."""
        try:
            return await self.loop.sock_recv(self.socket, 1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.socket.close()


Answer = Callable[[ServerConnection, bytes], None]


def echo(connection: ServerConnection, frame: bytes) -> None:
    connection.trust()
    connection.respond([framed(frame)])


class Served:
    """A listener whose requests are answered by a function; ``async with`` starts and closes it."""

    def __init__(self, answer: Answer = echo, limits: Limits | None = None) -> None:
        self.answer = answer
        self.limits = limits or Limits()
        self.requests: list[bytes] = []
        self.gone: list[ServerConnection] = []

    def arrived(self, connection: ServerConnection, frame: memoryview) -> None:
        self.requests.append(bytes(frame))
        self.answer(connection, self.requests[-1])

    def lost(self, connection: ServerConnection) -> None:
        self.gone.append(connection)

    async def __aenter__(self) -> Self:
        self.executor = ThreadPoolExecutor(2)
        self.context = ConnectionContext(self.limits, self.executor)
        self.listener = Listener(bound_socket("127.0.0.1", 0), self.context, self)
        self.address = self.listener.address
        self.listener.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.listener.close(patience_s=0.2)
        self.context.close()
        self.executor.shutdown()
        assert self.context.memory.used_bytes == 0 and not self.context.memory.waiting, "all request memory comes back"
        assert self.context.held_bytes == 0 and not self.context.per_host and not self.context.connections, "nothing of a connection stays"

    async def peer(self, *, receive_buffer: int | None = None) -> Peer:
        return await Peer.connected(self.address, receive_buffer=receive_buffer)


async def until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Lets the loop run until the condition holds. Raises TimeoutError."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        if asyncio.get_running_loop().time() > deadline:
            raise TimeoutError("what was waited for did not happen")
        await asyncio.sleep(0.005)


def open_descriptors() -> int:
    """How many file descriptors this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))
