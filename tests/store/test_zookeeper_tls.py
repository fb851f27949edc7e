"""A session with ZooKeeper over TLS: the stores of zookeeper.ssl.*, and refusals. A proxy ends TLS in front of a real ensemble."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from certificates import Certificate
from ottla.base.options import ConfigError
from ottla.base.ports import Op
from ottla.broker.metadata.configs import Settings
from ottla.server.store_factory import submit_and_wait, zookeeper_connection, zookeeper_tls
from ottla.server.zookeeper_ensemble import Ensemble
from ottla.store import layout
from ottla.store.zookeeper.opening import ZooKeeperUnavailable, open_session

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

AUTHORITY = Certificate.authority()


@asynccontextmanager
async def proxy(zookeeper: Ensemble, certificate: Certificate, directory: Path) -> AsyncIterator[str]:
    """HOST:PORT of a server with TLS that asks for certificates and passes bytes on to a server of the ensemble."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.write_pem(directory / "proxy.pem"))
    context.load_verify_locations(cadata=AUTHORITY.pem)
    context.verify_mode = ssl.CERT_REQUIRED
    host, port = zookeeper.servers[0].address

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
        target.close()

    async def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_server = await asyncio.open_connection(host, port)
        await asyncio.gather(copy(reader, to_server[1]), copy(to_server[0], writer))

    server = await asyncio.start_server(passed, "127.0.0.1", 0, ssl=context)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def settings(directory: Path, connect: str, **more: str) -> Settings:
    AUTHORITY.write_trusted(directory / "ca.pem")
    AUTHORITY.issue("broker").write_pkcs12(directory / "broker.p12", "sentinel")
    return Settings(
        {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "zookeeper.connect": f"{connect}/secured",
            "zookeeper.connection.timeout.ms": "4000",
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.ssl.keystore.location": str(directory / "broker.p12"),
            "zookeeper.ssl.keystore.password": "sentinel",
            "zookeeper.ssl.truststore.location": str(directory / "ca.pem"),
            **{name.replace("_", "."): text for name, text in more.items()},
        }
    )


async def test_a_session_over_tls_reads_and_writes(tmp_path: Path, zookeeper: Ensemble) -> None:
    async with proxy(zookeeper, AUTHORITY.issue("zookeeper"), tmp_path) as connect:
        session = await open_session(zookeeper_connection(settings(tmp_path, connect).options))
        result = await submit_and_wait(session, Op("set", layout.TOPICS, b"x" * 100_000), Op("check", layout.BROKERS))
        assert result.error is None
        session.close()
        await session.closed()


async def test_a_server_that_is_not_trusted_is_refused_with_the_reason(tmp_path: Path, zookeeper: Ensemble) -> None:
    for wrong, problem in (
        (Certificate.authority("other").issue("zookeeper"), "unable to get local issuer certificate"),
        (AUTHORITY.issue("zookeeper", names=["elsewhere.example"]), "IP address mismatch"),
    ):
        async with proxy(zookeeper, wrong, tmp_path) as connect:
            with pytest.raises(ZooKeeperUnavailable, match=f"TLS to 127.0.0.1:.* failed: {problem}"):
                await open_session(zookeeper_connection(settings(tmp_path, connect).options))


def test_settings_of_tls_to_zookeeper_are_refused_by_their_own_names(tmp_path: Path) -> None:
    for setting, text in (("zookeeper_ssl_keystore_location", "/none.p12"), ("zookeeper_ssl_cipher_suites", "TLS_NO_SUCH_WITH_SUITE")):
        with pytest.raises(ConfigError) as refused:
            zookeeper_tls(settings(tmp_path, "h:1", **{setting: text}).options)
        assert refused.value.name == setting.replace("_", ".") and "sentinel" not in str(refused.value)
