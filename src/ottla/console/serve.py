"""Runs the console: uvicorn with its event loop, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from ottla.client.options import address_text
from ottla.console.app import create_app
from ottla.console.options import ConsoleOptions
from ottla.net.listener import bound_socket

#: Connections that are served at once; each live tail holds one.
CONNECTIONS_MAX = 512
KEEP_ALIVE_S = 30
#: Time that open streams have after SIGTERM.
GRACE_S = 2
#: Threads that decode or match hand over to the loop after this time. With Python's 5 ms a page would wait that long at each step.
SWITCH_S = 0.0005


def serve(options: ConsoleOptions, ready: Callable[[str], None]) -> None:
    """Serves until a signal. `ready(url)` is called once browsers can connect. Raises: OSError if the address is in use."""
    app = create_app(options)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, date_header=False, limit_concurrency=CONNECTIONS_MAX,
        timeout_keep_alive=KEEP_ALIVE_S, timeout_graceful_shutdown=GRACE_S, lifespan="on", proxy_headers=False,
    )  # fmt: skip
    listener = bound_socket(options.host, options.port, backlog=128)
    sys.setswitchinterval(SWITCH_S)

    class Server(uvicorn.Server):
        """A server that reports that it listens, and for which a signal is an ordinary end: uvicorn's own raises it again."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self.handle_exit, number, None)
            yield

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                ready(f"http://{address_text(options.host, listener.getsockname()[1])}")

    with listener:
        asyncio.run(Server(config).serve(sockets=[listener]))
