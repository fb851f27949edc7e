"""A session with ZooKeeper over TLS: the stores of zookeeper.ssl.*, and refusals. A proxy ends TLS in front of a real ensemble,
or the server has TLS itself.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from certificates import Certificate
from ottla.base.options import ConfigError
from ottla.base.ports import Op
from ottla.broker.metadata.configs import Settings
from ottla.server.data_directory import CannotStart
from ottla.server.store_factory import submit_and_wait, zookeeper_connection, zookeeper_tls
from ottla.server.zookeeper_ensemble import Ensemble
from ottla.spark.java import NoJava, java_home
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


@contextlib.contextmanager
def running(directory: Path, lines: dict[str, str]) -> Iterator[None]:
    """A ZooKeeper server with lines of zoo.cfg."""
    try:
        made = Ensemble(directory, java_home(needed_by="ZooKeeper"), settings=lines)
    except (CannotStart, NoJava) as error:
        pytest.skip(f"no ZooKeeper can be run here: {error}")
    try:
        made.start()
        yield
    finally:
        made.stop()


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


@pytest.mark.parametrize("protocols", ["", "TLSv1.2"])
async def test_a_real_server_with_tls_is_reached_with_the_default_version(tmp_path: Path, protocols: str) -> None:
    # ZooKeeper 3.9 accepts TLS 1.3 only, unless its ssl.enabledProtocols says otherwise.
    stores = {"keyStore": AUTHORITY.issue("zookeeper").write_pem(tmp_path / "zookeeper.pem"), "trustStore": tmp_path / "ca.pem"}
    lines = {f"ssl.{store}.location": str(path) for store, path in stores.items()} | {f"ssl.{store}.type": "PEM" for store in stores}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    lines |= {"secureClientPort": str(port), "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory"}
    if protocols:
        lines["ssl.enabledProtocols"] = protocols
    options = settings(tmp_path, f"127.0.0.1:{port}").options
    with running(tmp_path / "zookeeper", lines):
        session = await open_session(zookeeper_connection(options))
        assert (await submit_and_wait(session, Op("check", layout.BROKERS))).error is None
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
