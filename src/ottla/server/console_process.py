"""The web console beside a server (``ottla serve --console``): a process of its own that ends with the server.

It is the command ``ottla console``, so that pages and searches take no time of the broker's event loop. It connects like any client, over
a plaintext listener of the first broker; with other listeners only, the operator starts ``ottla console`` with the settings of a client.

The address is bound once before the brokers start, so that a port in use refuses the start. A console that ends later is logged, and the
brokers go on. A watcher process ends the console if the server is killed.
"""

import asyncio
import contextlib
import importlib.util
import logging
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ottla.base.listeners import Endpoint, SecurityProtocol
from ottla.base.options import ConfigError
from ottla.console.options import is_loopback
from ottla.server.addresses import Address, address_text
from ottla.server.child_processes import ChildWatcher
from ottla.server.data_directory import CannotStart

log = logging.getLogger("ottla.server")

OPTION = "--console"
#: Packages of the extra ``console`` that are looked for.
NEEDED = ("starlette", "uvicorn", "jinja2", "multipart")
#: Time that the console has to end after SIGTERM.
STOP_S = 5.0
#: Clients' settings in the environment that do not apply: the console connects over plaintext.
NOT_PASSED = ("OTTLA_PROFILE", "OTTLA_BOOTSTRAP_SERVERS")
#: A wildcard address, and where it is reached from this machine.
LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


class ConsolePlan(NamedTuple):
    """Options of the console."""

    address: Address
    #: File with users; None: no login.
    login: Path | None = None


class ConsoleProcess:
    """A running console."""

    def __init__(self, process: asyncio.subprocess.Process, watcher: ChildWatcher) -> None:
        self._process = process
        self._watcher = watcher
        self._stopping = False
        self._ended = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        code = await self._process.wait()
        self._watcher.remove(self._process.pid)
        if not self._stopping:
            log.error("the console ended with code %d, see the lines before; the brokers go on", code)

    async def stop(self) -> None:
        """Ends the console."""
        self._stopping = True
        if self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(asyncio.shield(self._ended), STOP_S)
            except TimeoutError:
                self._process.kill()
        await self._ended
        await asyncio.to_thread(self._watcher.close)


def check_console(plan: ConsolePlan, endpoints: Sequence[Endpoint]) -> None:
    """Refuses what would fail later. Raises: ConfigError, CannotStart."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(OPTION, f"the console needs packages that are not installed ({missing[0]}); pip install 'ottla[console]'")
    if not any(one.protocol is SecurityProtocol.PLAINTEXT for one in endpoints):
        raise ConfigError(
            OPTION,
            "no listener is PLAINTEXT, and the server does not know the settings of a client for the others; "
            "run ottla console -b HOST:PORT -X security.protocol=... beside it",
        )
    host, port = plan.address
    if plan.login is None and not is_loopback(host):
        raise ConfigError(OPTION, f"others reach {address_text(plan.address)}, and there is no login; use --console-login FILE")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(1)
    except OSError as error:
        raise CannotStart(
            f"the console cannot listen on {address_text(plan.address)}: {error.strerror or error}; choose another {OPTION} HOST:PORT"
        ) from None


async def start_console(plan: ConsolePlan, *, bootstrap: Address, http: Address | None, data_dir: Path) -> ConsoleProcess | None:
    """Starts the console; None, with a line in the log, if the system has no room for another process."""
    command = [sys.executable, "-m", "ottla", "console", "-b", address_text(_reached(bootstrap)), "--listen", address_text(plan.address)]
    command += ["--flight-records", str(data_dir)]
    if http is not None:
        command += ["--http", address_text(_reached(http))]
    if plan.login is not None:
        command += ["--login", str(plan.login)]
    environment = {name: value for name, value in os.environ.items() if name not in NOT_PASSED}
    watcher = None
    try:
        watcher = ChildWatcher()
        # In a session of its own, so that Ctrl-C ends it after the brokers, and not at the same time.
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, env=environment, start_new_session=True
        )
    except OSError as error:
        log.error("the console cannot be started: %s; the brokers go on", error)
        if watcher is not None:
            with contextlib.suppress(OSError):
                watcher.close()
        return None
    watcher.add(process.pid)
    log.info("started the console as process %d, at http://%s", process.pid, address_text(plan.address))
    return ConsoleProcess(process, watcher)


def _reached(address: Address) -> Address:
    """An address to connect to, of one that was bound."""
    return LOOPBACK.get(address[0], address[0]), address[1]
