"""Sidecars: the web console and the schema registry beside a server (``ottla serve --console --registry``), each a process of its own that
ends with the server.

They are the commands ``ottla console`` and ``ottla registry serve``, so that they take no time of the broker's event loop. They connect as
clients, over a plaintext listener of the first broker; with other listeners only, the operator runs them with the settings of a client.

The address is bound once before the brokers start, so that a port in use refuses the start. A sidecar that ends later is logged, and the
brokers go on. A watcher process ends it if the server is killed.
"""

import asyncio
import contextlib
import importlib.util
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ottla.base.listeners import Endpoint, SecurityProtocol, is_loopback
from ottla.base.options import ConfigError
from ottla.net.listener import bound_socket
from ottla.server.addresses import Address, address_text
from ottla.server.child_processes import ChildWatcher
from ottla.server.data_directory import CannotStart

log = logging.getLogger("ottla.server")

#: Time that a sidecar has to end after SIGTERM.
STOP_S = 5.0
#: Clients' settings in the environment that do not apply: sidecars connect over plaintext.
NOT_PASSED = ("OTTLA_PROFILE", "OTTLA_BOOTSTRAP_SERVERS")
#: A wildcard address, and where it is reached from this machine.
LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


class SidecarPlan(NamedTuple):
    """A command that runs beside the brokers."""

    name: str
    #: How the operator runs it without the brokers.
    alone: str
    #: The option of ``ottla serve``.
    option: str
    address: Address
    #: The command after ``ottla``, with its own options.
    command: tuple[str, ...]
    #: The extra of this package, and modules of it that are looked for.
    extra: str
    modules: tuple[str, ...]
    #: How it gets a login, without which no other machine may reach it.
    login_remedy: str
    has_login: bool = False
    #: Whether it reads from the HTTP listener of the brokers, with its option ``--http``.
    reads_http: bool = False


def console_plan(address: Address, login: Path | None, data_dir: Path, registry: Address | None) -> SidecarPlan:
    """The web console. ``login``: file with users; ``data_dir``: where flight records are; ``registry``: the schema registry beside it."""
    words = ["console", "--flight-records", str(data_dir)]
    if login is not None:
        words += ["--login", str(login)]
    # Port 0 is known only to the registry; then the operator's OTTLA_REGISTRY applies.
    if registry is not None and registry[1]:
        words += ["--registry", f"http://{address_text(_reached(registry))}"]
    return SidecarPlan(
        name="console",
        alone="ottla console",
        option="--console",
        address=address,
        command=tuple(words),
        extra="console",
        modules=("starlette", "uvicorn", "jinja2", "multipart"),
        has_login=login is not None,
        login_remedy="use --console-login FILE",
        reads_http=True,
    )


def registry_plan(address: Address) -> SidecarPlan:
    """The schema registry."""
    return SidecarPlan(
        name="schema registry",
        alone="ottla registry serve",
        option="--registry",
        address=address,
        command=("registry", "serve"),
        extra="registry",
        modules=("starlette", "uvicorn", "fastavro", "jsonschema"),
        login_remedy="run ottla registry serve with --auth FILE or --tls-client-ca FILE for it",
    )


class Sidecar:
    """A running one."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, watcher: ChildWatcher) -> None:
        self._name = name
        self._process = process
        self._watcher = watcher
        self._stopping = False
        self._ended = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        code = await self._process.wait()
        self._watcher.remove(self._process.pid)
        if not self._stopping:
            log.error("the %s ended with code %d, see the lines before; the brokers go on", self._name, code)

    async def stop(self) -> None:
        """Ends the process."""
        self._stopping = True
        if self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(asyncio.shield(self._ended), STOP_S)
            except TimeoutError:
                self._process.kill()
        await self._ended
        await asyncio.to_thread(self._watcher.close)


def check_sidecar(plan: SidecarPlan, endpoints: Sequence[Endpoint]) -> None:
    """Refuses what would fail later. Raises: ConfigError, CannotStart."""
    missing = [name for name in plan.modules if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            plan.option, f"the {plan.name} needs packages that are not installed ({missing[0]}); pip install 'ottla[{plan.extra}]'"
        )
    if not any(one.protocol is SecurityProtocol.PLAINTEXT for one in endpoints):
        raise ConfigError(
            plan.option,
            "no listener is PLAINTEXT, and the server does not know the settings of a client for the others; "
            f"run {plan.alone} -b HOST:PORT -X security.protocol=... beside it",
        )
    host, port = plan.address
    if not plan.has_login and not is_loopback(host):
        raise ConfigError(plan.option, f"others reach {address_text(plan.address)}, and there is no login; {plan.login_remedy}")
    try:
        bound_socket(host, port, backlog=1).close()
    except OSError as error:
        raise CannotStart(
            f"the {plan.name} cannot listen on {address_text(plan.address)}: {error.strerror or error}; "
            f"choose another {plan.option} HOST:PORT"
        ) from None


async def start_sidecar(plan: SidecarPlan, *, bootstrap: Address, http: Address | None) -> Sidecar | None:
    """Starts it; None, with a line in the log, if the system has no room for another process. ``http``: the brokers' HTTP listener."""
    command = [
        sys.executable,
        "-m",
        "ottla",
        *plan.command,
        "-b",
        address_text(_reached(bootstrap)),
        "--listen",
        address_text(plan.address),
    ]
    if http is not None and plan.reads_http:
        command += ["--http", address_text(_reached(http))]
    environment = {name: value for name, value in os.environ.items() if name not in NOT_PASSED}
    watcher = None
    try:
        watcher = ChildWatcher()
        # In a session of its own, so that Ctrl-C ends it after the brokers, and not at the same time.
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, env=environment, start_new_session=True
        )
    except OSError as error:
        log.error("the %s cannot be started: %s; the brokers go on", plan.name, error)
        if watcher is not None:
            with contextlib.suppress(OSError):
                watcher.close()
        return None
    watcher.add(process.pid)
    log.info("started the %s as process %d, at http://%s", plan.name, process.pid, address_text(plan.address))
    return Sidecar(plan.name, process, watcher)


def _reached(address: Address) -> Address:
    """An address to connect to, of one that was bound."""
    return LOOPBACK.get(address[0], address[0]), address[1]
