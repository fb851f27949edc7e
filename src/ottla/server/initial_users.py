"""Users that exist before the first start: SCRAM credentials in the coordination store, without a broker.

A cluster whose only listener has SASL needs a first user, whom nobody could add over the network. Source: KIP-900.
"""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ottla.base.ports import NodeState, Op, Store
from ottla.base.scram import ScramCredential, ScramMechanism
from ottla.server.data_directory import CannotStart
from ottla.server.store_factory import EmbeddedStoreFactory, read_and_watch, submit_and_wait
from ottla.store import layout

SALT_BYTES = 24
#: Attempts after another process changed the user.
ATTEMPTS_MAX = 5


@dataclass(frozen=True, slots=True)
class InitialUser:
    """A user's password for one mechanism."""

    name: str
    mechanism: ScramMechanism
    password: str = field(repr=False)
    iterations: int


async def store_users(session: Store, users: Sequence[InitialUser], *, replace: bool) -> None:
    """Writes the credentials. ``replace``: also those of a mechanism that the user has. Raises: CannotStart."""
    nodes: dict[str, NodeState] = {}
    await read_and_watch(session, f"{layout.CONFIG}/users", lambda state: nodes.update({state.path: state}))
    for user in users:
        for _ in range(ATTEMPTS_MAX):
            path = layout.config("users", user.name)
            node = nodes.get(path)
            present = layout.decode_config(node.data) if node is not None and node.data is not None else None
            if present is not None and user.mechanism.mechanism in present and not replace:
                break
            data = layout.encode_config({**(present or {}), user.mechanism.mechanism: await _text(user)})
            op = Op("create", path, data) if present is None or node is None else Op("set", path, data, version=node.version)
            result = await submit_and_wait(session, op)
            if result.error is None:
                break
        else:
            raise CannotStart(f"user {user.name} cannot be written to the coordination store: {result.error}")


async def _text(user: InitialUser) -> str:
    def derive() -> str:
        salt = secrets.token_bytes(SALT_BYTES)
        return ScramCredential.of_password(user.mechanism, user.password, salt, user.iterations).text

    return await asyncio.get_running_loop().run_in_executor(None, derive)


async def store_in_directory(data_dir: Path, users: Sequence[InitialUser]) -> None:
    """Writes the credentials to the embedded store of a server that does not run. Raises: CannotStart."""
    factory = EmbeddedStoreFactory(data_dir, lambda reason: None)
    try:
        await store_users(await factory.session(), users, replace=True)
    finally:
        await factory.close()
