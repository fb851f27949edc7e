"""Forwards writes to the elected instance, over HTTP."""

from __future__ import annotations

import ssl

import httpx

from ottla.base.options import ConfigError
from ottla.registry import errors

TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 5.0


class Forwarding:
    """Connections to other instances. Belongs to one event loop."""

    def __init__(self, ca_file: str | None) -> None:
        """`ca_file`: authorities of their certificates, as PEM. Raises: ConfigError."""
        try:
            verify = ssl.create_default_context(cafile=ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError("--peer-ca", f"{ca_file} cannot be read: {error}") from None
        self._client = httpx.AsyncClient(verify=verify, timeout=httpx.Timeout(TIMEOUT_S, connect=CONNECT_TIMEOUT_S), trust_env=False)

    async def send(self, url: str, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, str, bytes]:
        """Status, content type and body of the answer. Raises: RegistryError."""
        try:
            answer = await self._client.request(method, url + path, headers=headers, content=body)
        except httpx.HTTPError as error:
            raise errors.forwarding_failed(f"The elected instance {url} did not answer: {type(error).__name__}: {error}") from None
        return answer.status_code, answer.headers.get("content-type", "application/json"), answer.content

    async def close(self) -> None:
        await self._client.aclose()
