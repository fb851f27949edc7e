"""Basic authentication of the HTTP API, with hashed passwords from a file.

A line of the file is `NAME HASH [ROLE]`, with a hash of `ottla console --hash-password`. Lines that begin with # are comments. Roles:

    writer   everything (the default)
    reader   requests that change nothing

Wrong passwords are limited (``net/password_check.py``). A login is checked once, then its digest is known, so that a request does not cost
a slow hash. A wrong login that a program repeats costs nothing either, and is counted once: it makes no other program of its address wait.

`/healthz` needs no user. Which requests change something is a matter of their route (``http.py``), not of the text of their path, which a
client can encode in several ways.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from base64 import b64decode
from binascii import Error as Base64Error
from math import ceil
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ottla.base.options import ConfigError
from ottla.base.passwords import NOBODY
from ottla.net.password_check import PasswordCheck, TooManyAttempts

READER, WRITER = "reader", "writer"
UNAUTHORIZED = b'{"error_code":401,"message":"Unauthorized"}'
TOO_MANY = b'{"error_code":429,"message":"Too many wrong passwords; ask again later"}'
#: Logins that are known to be right, and to be wrong.
REMEMBERED_MAX = 1000


class Users:
    """Users with the hashes of their passwords and their roles."""

    def __init__(self, users: dict[str, tuple[str, str]], check: PasswordCheck | None = None) -> None:
        self._users = users
        self._check = PasswordCheck() if check is None else check
        self._salt = secrets.token_bytes(16)
        #: Digests of logins that were right, and of those that were wrong last. The file is read once, so they stay so.
        self._right: set[bytes] = set()
        self._wrong: dict[bytes, None] = {}
        #: Checks in progress: a client begins with many requests at once.
        self._checks: dict[bytes, asyncio.Task[bool]] = {}

    async def role(self, name: str, password: str, *, address: str) -> str | None:
        """The role of the user; None for an unknown name or a wrong password, which take the same time. Raises: TooManyAttempts."""
        # First, so that those who must wait do not learn which passwords are known.
        self._check.refuse_guesses(address, name)
        digest = hashlib.blake2b(f"{len(name)} {name}{password}".encode(), key=self._salt).digest()
        stored, role = self._users.get(name, (NOBODY, ""))
        if digest in self._right:
            return role
        if digest in self._wrong:
            return None
        check = self._checks.get(digest)
        if check is None:
            check = self._checks[digest] = asyncio.create_task(self._check.is_correct(password, stored, address=address, name=name))
            check.add_done_callback(lambda _: self._checks.pop(digest, None))
        if await asyncio.shield(check) and role:
            if len(self._right) < REMEMBERED_MAX:
                self._right.add(digest)
            return role
        self._wrong[digest] = None
        if len(self._wrong) > REMEMBERED_MAX:
            del self._wrong[next(iter(self._wrong))]
        return None


def read_users(path: Path) -> Users:
    """Raises: ConfigError."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("--auth", f"cannot read {path}: {error}") from None
    users: dict[str, tuple[str, str]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, *rest = line.split()
        if not 1 <= len(rest) <= 2 or not rest[0].startswith("scrypt:"):
            raise ConfigError("--auth", f"{path}, line {number}: expected NAME HASH [ROLE]; ottla console --hash-password makes a hash")
        role = rest[1] if len(rest) == 2 else WRITER
        if role not in (READER, WRITER):
            raise ConfigError("--auth", f"{path}, line {number}: there are the roles {READER} and {WRITER}, not {role!r}")
        users[name] = (rest[0], role)
    if not users:
        raise ConfigError("--auth", f"{path} has no user")
    return Users(users)


class BasicAuth:
    """Refuses requests without a user. Others have the user's role in ``scope["role"]``."""

    def __init__(self, app: ASGIApp, users: Users) -> None:
        self._app = app
        self._users = users

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == "/healthz":
            await self._app(scope, receive, send)
            return
        client = scope.get("client")
        try:
            role = await self._role(Headers(scope=scope).get("authorization", ""), client[0] if client else "")
        except TooManyAttempts as error:
            waits = Response(TOO_MANY, 429, {"Retry-After": str(ceil(error.wait_s))}, "application/json")
            await waits(scope, receive, send)
            return
        if role is None:
            refused = Response(UNAUTHORIZED, 401, {"WWW-Authenticate": 'Basic realm="schema registry"'}, "application/json")
            await refused(scope, receive, send)
        else:
            await self._app({**scope, "role": role}, receive, send)

    async def _role(self, header: str, address: str) -> str | None:
        kind, _, encoded = header.partition(" ")
        if kind.lower() != "basic":
            return None
        try:
            name, colon, password = b64decode(encoded, validate=True).decode().partition(":")
        except (Base64Error, UnicodeDecodeError):
            return None
        return await self._users.role(name, password, address=address) if colon else None
