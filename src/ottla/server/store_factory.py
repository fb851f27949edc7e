"""Which coordination store a process uses: its own file, or the ZooKeeper of a cluster of several processes."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ottla.base.options import ConfigError
from ottla.base.ports import NodeState, Op, Store, StoreResult
from ottla.broker.metadata.configs import ServerOptions
from ottla.server.addresses import only_listener
from ottla.server.data_directory import STORE, CannotStart
from ottla.store import layout
from ottla.store.embedded.copies import copy_paths, remedy
from ottla.store.embedded.file import StoreDamaged, StoreFileError, StoreForeign
from ottla.store.embedded.store import EmbeddedStore

if TYPE_CHECKING:
    # Where it is used it is imported: a process that keeps its own store needs none of it.
    from ottla.store.zookeeper.session import Connect, ZooKeeperSession

log = logging.getLogger("ottla.server")

#: How often a start that waits for the store says so.
TOLD_EVERY_S = 3.0
#: Registered by a broker that listens everywhere, it would lead others nowhere.
ANYWHERE = ("", "0.0.0.0", "::")


class Coordination(Protocol):
    """Opens sessions with the store."""

    async def session(self) -> Store:
        """Raises: CannotStart."""
        ...

    async def close(self) -> None:
        """Ends all sessions."""
        ...


class Embedded:
    """The store is a file of this process."""

    def __init__(self, data_dir: Path, failed: Callable[[str], None]) -> None:
        """Raises: CannotStart."""
        path = data_dir / STORE
        try:
            path.parent.mkdir(exist_ok=True)
            self.store = EmbeddedStore(path, failed=lambda reason: failed(f"{reason}. Look at the disk, then start again for what to do"))
        except StoreDamaged as error:
            raise CannotStart(f"{error}. {remedy(path, data_dir, now_s=time.time())}") from None
        except StoreForeign as error:
            damaged = f". If it is damaged: {remedy(path, data_dir, now_s=time.time())}" if copy_paths(path) else ""
            raise CannotStart(f"{error}{damaged}") from None
        except StoreFileError as error:
            raise CannotStart(str(error)) from None
        except OSError as error:
            reason = "it is not a directory" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
            raise CannotStart(f"cannot use {path.parent} for the coordination store: {reason}") from None

    async def session(self) -> Store:
        return self.store.session()

    async def close(self) -> None:
        await self.store.close()


class ZooKeeper:
    """The store is an ensemble that many processes share."""

    def __init__(self, connect: Connect, failed: Callable[[str], None]) -> None:
        self._connect = connect
        self._failed = failed
        self._sessions: list[ZooKeeperSession] = []

    async def session(self) -> Store:
        from ottla.store.zookeeper.opening import ZooKeeperUnavailable, open_session

        try:
            opened = await open_session(self._connect, failed=self._failed)
        except ZooKeeperUnavailable as error:
            raise CannotStart(str(error)) from None
        self._sessions.append(opened)
        return opened

    async def close(self) -> None:
        for session in self._sessions:
            session.close()
        await asyncio.gather(*(session.closed() for session in self._sessions))


def coordination(options: ServerOptions, data_dir: Path, failed: Callable[[str], None]) -> Coordination:
    """The store that the options ask for; ``failed`` is told when it cannot be worked with any more. Raises: ConfigError, CannotStart."""
    if not options.zookeeper_connect:
        return Embedded(data_dir, failed)
    return ZooKeeper(connection(options), failed)


def connection(options: ServerOptions) -> Connect:
    """Where the ensemble is. Raises: ConfigError."""
    from ottla.store.zookeeper.session import Connect

    waits_ms = options.zookeeper_connection_timeout_ms
    try:
        connect = Connect.parse(
            options.zookeeper_connect,
            session_timeout_ms=options.zookeeper_session_timeout_ms,
            connection_timeout_ms=waits_ms if waits_ms >= 0 else None,
        )
    except ValueError as error:
        raise ConfigError("zookeeper.connect", str(error)) from None
    told = options.advertised_listeners or options.listeners
    if only_listener(told, name="advertised.listeners")[0] in ANYWHERE:
        problem = "a broker that listens on every address has to say which of them others reach it at, as PLAINTEXT://HOST:PORT"
        raise ConfigError("advertised.listeners", problem)
    return connect


async def submitted(session: Store, *ops: Op) -> StoreResult:
    """The outcome of a multi, once everything before it was told. Waits for a store that cannot be reached; can be cancelled."""
    began_s = told_s = time.monotonic()
    while True:
        answer: asyncio.Future[StoreResult] = asyncio.get_running_loop().create_future()
        session.submit(ops, answer.set_result)
        result = await answer
        if result.error != "unavailable":
            return result
        if time.monotonic() - told_s >= TOLD_EVERY_S:
            told_s = time.monotonic()
            log.warning("waiting for the coordination store, which has not answered for %.0f s", told_s - began_s)
        await asyncio.sleep(0.1)


async def read(session: Store, prefix: str, seen: Callable[[NodeState], object]) -> None:
    """Shows every node below a path as it stands now, and as it changes."""

    def changed(state: NodeState) -> None:
        seen(state)

    session.watch(prefix, changed)
    await submitted(session, Op("check", layout.BROKERS))


async def cluster_id(session: Store) -> str:
    """The cluster's id, 22 characters as Kafka's; made at the first start, and kept before any log directory is marked with it.

    Raises: CannotStart.
    """
    # No features are switched on in one go for the cluster; that it could be is said as Kafka says it.
    await submitted(session, Op("create", layout.FEATURE, layout.encode_feature(layout.Features())))
    made = urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=").decode()
    result = await submitted(session, Op("create", layout.CLUSTER_ID, layout.encode_cluster_id(made)))
    if result.error is None:
        return made
    found: list[bytes] = []
    await read(session, layout.CLUSTER_ID, lambda state: found.append(state.data or b""))
    if not found:
        raise CannotStart(f"the coordination store does not keep what is written to it: {result.error}")
    return layout.decode_cluster_id(found[-1])
