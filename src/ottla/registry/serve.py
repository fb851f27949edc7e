"""Runs the registry: HTTP by uvicorn, until SIGTERM or Ctrl-C, or as a part of another process."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import uvicorn

from ottla.base.listeners import is_loopback
from ottla.base.options import ConfigError
from ottla.client.options import address_text
from ottla.net.listener import bound_socket
from ottla.registry.basic_auth import Users
from ottla.registry.election import InstanceIdentity
from ottla.registry.http import create_app
from ottla.registry.instance import Instance, InstanceOptions

CONNECTIONS_MAX = 4096
KEEP_ALIVE_S = 30
GRACE_S = 2
#: Threads that compare schemas hand over to the loop after this time.
SWITCH_S = 0.0005
#: How long a start waits for the election.
ELECTION_S = 30.0


@dataclass(slots=True, frozen=True)
class ServeOptions:
    """Where the registry listens, and what it needs. `instance.identity` with port 0 gets the port that it listens on."""

    instance: InstanceOptions
    host: str
    port: int
    users: Users | None = None
    certificate: Path | None = None
    private_key: Path | None = None
    #: Authorities of client certificates; requests without one are refused.
    client_ca: Path | None = None


@asynccontextmanager
async def running(options: ServeOptions) -> AsyncIterator[tuple[str, Instance]]:
    """The registry, during the block: its URL and instance. Raises: OSError, KafkaError, ConfigError."""
    listener = bound_socket(options.host, options.port)
    with listener:
        port = listener.getsockname()[1]
        identity = options.instance.identity
        identity = replace_port(identity, port)
        instance = Instance(replace(options.instance, identity=identity))
        config = uvicorn.Config(
            create_app(instance, options.users, own_names=_own_names(options)),
            log_level="warning", access_log=False, server_header=False, date_header=False,
            limit_concurrency=CONNECTIONS_MAX, timeout_keep_alive=KEEP_ALIVE_S, timeout_graceful_shutdown=GRACE_S, lifespan="off",
            proxy_headers=False, **_tls(options),
        )  # fmt: skip
        server = _Server(config)
        task: asyncio.Task[None] | None = None
        try:
            await instance.start()
            task = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]))
            async with asyncio.timeout(ELECTION_S):
                await server.serving.wait()
                await instance.knows_leader.wait()
            yield f"{identity.scheme}://{address_text(options.host, port)}", instance
        finally:
            server.should_exit = True
            if task is not None:
                await asyncio.gather(task, return_exceptions=True)
            await instance.close()


def _own_names(options: ServeOptions) -> tuple[str, ...] | None:
    """The names by which requests may call a registry that any page in this machine's browsers can reach; None: by any name."""
    if options.users is not None or options.client_ca is not None or not is_loopback(options.host):
        return None
    return ("localhost", options.host, options.instance.identity.host)


def replace_port(identity: InstanceIdentity, port: int) -> InstanceIdentity:
    return identity if identity.port else InstanceIdentity(identity.host, port, identity.master_eligibility, identity.scheme)


class _Server(uvicorn.Server):
    """A server that reports that it listens, and whose process handles signals."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.serving = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.serving.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _tls(options: ServeOptions) -> dict[str, Any]:
    """Settings of uvicorn. Raises: ConfigError."""
    if options.certificate is None:
        return {}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(options.certificate, options.private_key or options.certificate)
        if options.client_ca is not None:
            context.load_verify_locations(options.client_ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError("--tls-certificate", f"{options.certificate} cannot be used: {error}") from None
    return {
        "ssl_certfile": str(options.certificate),
        "ssl_keyfile": str(options.private_key or options.certificate),
        "ssl_ca_certs": None if options.client_ca is None else str(options.client_ca),
        "ssl_cert_reqs": ssl.CERT_NONE if options.client_ca is None else ssl.CERT_REQUIRED,
    }


def serve(options: ServeOptions, ready: Callable[[str], None]) -> None:
    """Serves until a signal. `ready(url)` is called once clients can connect. Raises: OSError, KafkaError, ConfigError, TimeoutError."""
    sys.setswitchinterval(SWITCH_S)
    asyncio.run(_serve(options, ready))


async def _serve(options: ServeOptions, ready: Callable[[str], None]) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with running(options) as (url, _):
        ready(url)
        await stopped.wait()
