"""Login by OpenID Connect: the authorization code flow with PKCE, by authlib.

    /login/oidc      state, nonce and code verifier go into the session; the browser goes to the provider
    /login/callback  the code is exchanged for an ID token; its signature, issuer, audience, nonce and times are checked

The token is forgotten after its claims were read: the console keeps a name and a role.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ottla.console.options import Oidc
from ottla.console.web.roles import Role
from ottla.console.web.sessions import UserIdentity

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


class LoginFailed(Exception):
    """The provider's answer does not log anybody in; the message is for the user."""


def _http_errors() -> list[type[Exception]]:
    """The errors of httpx, and of httpx2, which authlib uses where it is installed."""
    installed = (name for name in ("httpx", "httpx2") if importlib.util.find_spec(name) is not None)
    return [importlib.import_module(name).HTTPError for name in installed]


class Provider:
    """A provider, whose metadata is fetched with the first login."""

    def __init__(self, settings: Oidc) -> None:
        """Raises: ImportError without authlib."""
        from authlib.integrations.starlette_client import OAuth

        self._settings = settings
        self._client = OAuth().register(
            "provider",
            server_metadata_url=f"{settings.issuer.rstrip('/')}/.well-known/openid-configuration",
            client_id=settings.client_id,
            client_secret=settings.client_secret,
            client_kwargs={"scope": settings.scopes, "code_challenge_method": "S256"},
        )

    async def begin(self, request: Request, callback: str) -> Response:
        """Redirects the browser to the provider. Raises: LoginFailed."""
        from authlib.common.errors import AuthlibBaseError

        request.scope["session"] = request.state.session.pending
        try:
            response: Response = await self._client.authorize_redirect(request, callback)
        except (AuthlibBaseError, ValueError, *_http_errors()) as error:
            raise LoginFailed(f"The identity provider cannot be used: {error}") from error
        return response

    async def complete(self, request: Request) -> UserIdentity:
        """The identity behind the provider's answer. Raises: LoginFailed."""
        from authlib.common.errors import AuthlibBaseError
        from joserfc.errors import JoseError

        request.scope["session"] = request.state.session.pending
        try:
            token = await self._client.authorize_access_token(request)
        except (AuthlibBaseError, JoseError, ValueError, KeyError, *_http_errors()) as error:
            raise LoginFailed(f"The identity provider's answer is not valid: {error}") from error
        finally:
            request.state.session.pending = {}
        return identity_of(self._settings, token.get("userinfo") or {})


def identity_of(settings: Oidc, claims: Mapping[str, Any]) -> UserIdentity:
    """The identity of an ID token's claims. Raises: LoginFailed without a name or a role."""
    name = claims.get(settings.name_claim) or claims.get("email") or claims.get("sub")
    if not isinstance(name, str) or not name:
        raise LoginFailed("The identity provider's answer has no name.")
    given = claims.get(settings.roles_claim, ())
    values = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    roles: list[Role] = [settings.roles[value] for value in values if isinstance(value, str) and value in settings.roles]
    if not roles:
        raise LoginFailed(f"{name} has no role in the console: none of the values of {settings.roles_claim} is in its login file.")
    return UserIdentity(name, max(roles), "oidc")
