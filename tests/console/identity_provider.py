"""An OpenID Connect provider in memory: discovery, keys, authorization with PKCE, tokens. It logs in whom a test names."""

from __future__ import annotations

import base64
import hashlib
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

import jwt
import uvicorn
from cryptography.hazmat.primitives.asymmetric import rsa
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

CLIENT_ID, CLIENT_SECRET = "ottla-console", "hush"
KEY_ID = "one"


class Provider:
    """The provider. `claims` are those of whoever logs in next; `key` signs the tokens."""

    def __init__(self) -> None:
        self.issuer = ""
        self.claims: dict[str, Any] = {}
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._published = self.key.public_key()
        #: Nonce, code challenge and redirect URI by code.
        self._codes: dict[str, tuple[str, str, str]] = {}

    async def discover(self, request: Request) -> Response:
        return JSONResponse(
            {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/keys",
                "id_token_signing_alg_values_supported": ["RS256"],
            }
        )

    async def keys(self, request: Request) -> Response:
        key = jwt.algorithms.RSAAlgorithm.to_jwk(self._published, as_dict=True)
        return JSONResponse({"keys": [{**key, "kid": KEY_ID, "use": "sig", "alg": "RS256"}]})

    async def authorize(self, request: Request) -> Response:
        asked = request.query_params
        assert asked["client_id"] == CLIENT_ID and asked["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(16)
        self._codes[code] = asked["nonce"], asked["code_challenge"], asked["redirect_uri"]
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}", status_code=302)

    async def token(self, request: Request) -> Response:
        form = await request.form()
        basic = "Basic " + base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        nonce, challenge, redirect = self._codes.pop(str(form["code"]), ("", "", ""))
        digest = hashlib.sha256(str(form["code_verifier"]).encode()).digest()
        is_proven = base64.urlsafe_b64encode(digest).decode().rstrip("=") == challenge
        if request.headers.get("authorization") != basic or not is_proven or redirect != form["redirect_uri"]:
            return JSONResponse({"error": "invalid_grant"}, status_code=400)
        now_s = int(time.time())
        claims = {"iss": self.issuer, "aud": CLIENT_ID, "sub": "1", "nonce": nonce, "iat": now_s, "exp": now_s + 60, **self.claims}
        token = jwt.encode(claims, self.key, "RS256", headers={"kid": KEY_ID})
        return JSONResponse({"access_token": "unused", "token_type": "Bearer", "id_token": token, "expires_in": 60})


@contextmanager
def provider() -> Iterator[Provider]:
    """A provider at a free port."""
    made = Provider()
    routes = [
        Route("/.well-known/openid-configuration", made.discover),
        Route("/keys", made.keys),
        Route("/authorize", made.authorize),
        Route("/token", made.token, methods=["POST"]),
    ]
    ready = threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            port = self.servers[0].sockets[0].getsockname()[1]
            made.issuer = f"http://127.0.0.1:{port}"
            ready.set()

    server = Server(uvicorn.Config(Starlette(routes=routes), host="127.0.0.1", port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert ready.wait(20), "the provider listens"
        yield made
    finally:
        server.should_exit = True
        thread.join()
