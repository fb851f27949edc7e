"""Opens a session with a ZooKeeper ensemble, and waits for an ensemble that does not answer."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from functools import partial

from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    InvalidACLError,
    KazooException,
    NoAuthError,
    OperationTimeoutError,
    SessionExpiredError,
)

from ottla.base.ports import Op, StoreResult
from ottla.store.layout import PERSISTENT_PATHS
from ottla.store.zookeeper.requests import Multi
from ottla.store.zookeeper.session import Connect, ZooKeeperSession, set_outcome

log = logging.getLogger("ottla.store")


class ZooKeeperUnavailable(Exception):
    """No session could be opened; the message is one line for the operator."""


class ConnectionLost(Exception):
    """A new session ended before it could be used. Another attempt may succeed."""


#: Interval of the warnings of a start that waits for the ensemble.
WARN_EVERY_S = 3.0
WAIT_SLICE_S = 0.25
TRY_AGAIN_S = 1.0


async def open_session(connect: Connect, *, failed: Callable[[str], None] | None = None) -> ZooKeeperSession:
    """Opens a session, and creates the chroot and all nodes of our layout.

    Waits for an ensemble that does not answer for up to ``connection_timeout_ms``, with a warning every few seconds. Can be cancelled.
    Raises: ZooKeeperUnavailable.
    """
    began_s = time.monotonic()
    while True:
        session = ZooKeeperSession(connect, failed=failed)
        try:
            await _answered(session, began_s)
            await _prepared(session)
        except ConnectionLost as error:
            await _ended(session)
            if _expired(connect, began_s):
                raise ZooKeeperUnavailable(str(error)) from None
            log.warning("%s; trying again", error)
            await asyncio.sleep(TRY_AGAIN_S)
        except BaseException:
            await _ended(session)
            raise
        else:
            return session


def _expired(connect: Connect, began_s: float) -> bool:
    limit_ms = connect.connection_timeout_ms
    return limit_ms is not None and time.monotonic() - began_s >= limit_ms / 1000


async def _ended(session: ZooKeeperSession) -> None:
    session.close()
    await session.closed()


async def _answered(session: ZooKeeperSession, began_s: float) -> None:
    """Returns when a server opened the session. Raises: ZooKeeperUnavailable when none did in time."""
    connect, warned_s = session.connect, time.monotonic()
    live = session.client.start_async()
    # In slices, so that a stop does not wait long for the thread.
    while not await session._loop.run_in_executor(None, live.wait, WAIT_SLICE_S):
        if _expired(connect, began_s):
            raise ZooKeeperUnavailable(
                f"no ZooKeeper answers at {connect.hosts} within {connect.connection_timeout_ms} ms "
                f"(zookeeper.connection.timeout.ms); is it running? See zookeeper.connect{session.problem}"
            )
        if time.monotonic() - warned_s >= WARN_EVERY_S:
            warned_s = time.monotonic()
            log.warning(
                "waiting for ZooKeeper: no server at %s has answered for %.0f s; is it running? See zookeeper.connect%s",
                connect.hosts,
                warned_s - began_s,
                session.problem,
            )


async def _prepared(session: ZooKeeperSession) -> None:
    """Creates the chroot and all nodes of our layout. Raises: ConnectionLost, ZooKeeperUnavailable."""
    connect = session.connect
    parts = connect.chroot.split("/")
    above: list[str] = ["/".join(parts[:depth]) for depth in range(2, len(parts) + 1)]
    for root, paths in (("", above), (connect.chroot, PERSISTENT_PATHS)):
        await _make(session, root, paths)


def _reason(error: KazooException) -> str:
    """What ZooKeeper refuses, and what to do."""
    if isinstance(error, NoAuthError | InvalidACLError | AuthFailedError):
        settings = "zookeeper.set.acl, ottla.zookeeper.sasl and ottla.zookeeper.digest"
        return f"no access to {error or 'a node'}; its rules are for another identity: see {settings}"
    return str(error) or type(error).__name__


async def _make(session: ZooKeeperSession, root: str, paths: Iterable[str]) -> None:
    """Creates missing nodes. Raises: ConnectionLost, ZooKeeperUnavailable."""
    replies = []
    for path in paths:
        reply = session._loop.create_future()
        session._request(Multi([Op("create", path)], root, secure=session.connect.secure), partial(set_outcome, reply))
        replies.append(reply)
    try:
        results: list[StoreResult] = [result for reply in await asyncio.gather(*replies) for result in reply]
    except KazooException as error:
        if not isinstance(error, (ConnectionLoss, ConnectionClosedError, SessionExpiredError, OperationTimeoutError)):
            raise ZooKeeperUnavailable(f"ZooKeeper at {session.connect.hosts} refuses: {_reason(error)}") from None
        raise ConnectionLost(f"ZooKeeper at {session.connect.hosts} hung up: {error or type(error).__name__}{session.problem}") from None
    errors = [result.error for result in results if result.error not in (None, "exists")]
    if errors:
        raise ZooKeeperUnavailable(f"ZooKeeper at {session.connect.hosts} refuses to create nodes: {errors[0]}")
