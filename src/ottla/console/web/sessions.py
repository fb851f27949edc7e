"""Sessions of browsers, in the memory of the console. The cookie is a random id: the browser holds no credentials.

A session without a user exists so that its forms have a token (`Session.csrf`). Their number is bounded: the one unused for longest is
dropped.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

from ottla.console.web.roles import Role

COOKIE = "ottla-console"
SESSIONS_MAX = 10_000
#: A session ends this long after its last request, and this long after the login.
IDLE_S = 8 * 3600.0
LIFE_S = 24 * 3600.0


class UserIdentity(msgspec.Struct, frozen=True):
    """Who is logged in; `how` is "password", "oidc" or "none"."""

    name: str
    role: Role
    how: str


class Session(msgspec.Struct):
    """A browser's session."""

    id: str
    csrf: str
    begun_s: float
    used_s: float
    identity: UserIdentity | None = None
    #: State of a login that has begun at an identity provider.
    pending: dict[str, Any] = {}
    #: Messages for the next page: (kind, text).
    flashes: list[tuple[str, str]] = []


class Sessions:
    """All sessions. Those with and without a user are bounded separately: requests without a cookie end nobody's login."""

    def __init__(self, clock_s: Callable[[], float], most: int = SESSIONS_MAX) -> None:
        self._clock_s = clock_s
        self._most = most
        #: By whether there is a user; the session used last at the end.
        self._by_id: dict[bool, OrderedDict[str, Session]] = {True: OrderedDict(), False: OrderedDict()}

    def __len__(self) -> int:
        return sum(map(len, self._by_id.values()))

    def find(self, id: str | None) -> Session | None:
        """The session with this id, if it has not ended."""
        for sessions in self._by_id.values():
            session = sessions.get(id or "")
            if session is None:
                continue
            now_s = self._clock_s()
            if now_s - session.used_s > IDLE_S or now_s - session.begun_s > LIFE_S:
                del sessions[session.id]
                return None
            session.used_s = now_s
            sessions.move_to_end(session.id)
            return session
        return None

    def begin(self, identity: UserIdentity | None = None) -> Session:
        """A new session."""
        now_s = self._clock_s()
        session = Session(secrets.token_urlsafe(32), secrets.token_urlsafe(32), now_s, now_s, identity)
        sessions = self._by_id[identity is not None]
        sessions[session.id] = session
        while len(sessions) > self._most:
            sessions.popitem(last=False)
        return session

    def end(self, session: Session) -> None:
        """Forgets a session: a copy of its cookie is worth nothing."""
        self._by_id[session.identity is not None].pop(session.id, None)
