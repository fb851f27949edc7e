"""A session with ZooKeeper over TLS: the stores of zookeeper.ssl.*, and refusals. A proxy ends TLS in front of a real ensemble,
or the server has TLS itself, and SASL.
"""

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, NoAuthError

from certificates import Certificate
from kerberos import REALM, Kerberos, kerberos
from ottla.base.options import ConfigError
from ottla.base.ports import Op
from ottla.broker.metadata.configs import ServerOptions, Settings
from ottla.server.data_directory import CannotStart
from ottla.server.store_factory import submit_and_wait, zookeeper_connection, zookeeper_tls
from ottla.server.zookeeper_ensemble import Ensemble
from ottla.spark.java import NoJava, java_home
from ottla.store import layout
from ottla.store.zookeeper.opening import ZooKeeperUnavailable, open_session

__all__ = ["kerberos"]
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
def running(directory: Path, lines: dict[str, str]) -> Iterator[Ensemble]:
    """A ZooKeeper server with lines of zoo.cfg."""
    try:
        made = Ensemble(directory, java_home(needed_by="ZooKeeper"), settings=lines)
    except (CannotStart, NoJava) as error:
        pytest.skip(f"no ZooKeeper can be run here: {error}")
    try:
        made.start()
        yield made
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


@contextlib.contextmanager
def secured(directory: Path, **more: str) -> Iterator[tuple[str, str]]:
    """A ZooKeeper server with TLS and with SASL; yields its plaintext and its TLS address."""
    stores = {"keyStore": AUTHORITY.issue("zookeeper").write_pem(directory / "zookeeper.pem"), "trustStore": directory / "ca.pem"}
    AUTHORITY.write_trusted(directory / "ca.pem")
    lines = {f"ssl.{store}.location": str(path) for store, path in stores.items()} | {f"ssl.{store}.type": "PEM" for store in stores}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    lines |= {"secureClientPort": str(port), "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory"}
    lines |= {"authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"}
    jaas = directory / "jaas.conf"
    jaas.write_text('Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_brokers="sentinel"; };')
    options = f"{os.environ.get('JDK_JAVA_OPTIONS', '')} -Djava.security.auth.login.config={jaas}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", options)
        with running(directory / "zookeeper", lines | {name.replace("_", "."): text for name, text in more.items()}) as made:
            yield made.connect, f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def secured_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    with secured(tmp_path_factory.mktemp("secured")) as addresses:
        yield addresses


async def used(options: ServerOptions) -> None:
    """Opens a session, and creates a node that only brokers read."""
    session = await open_session(zookeeper_connection(options))
    assert (await submit_and_wait(session, Op("create", layout.config("users", "alice"), b"credential"))).error is None
    session.close()
    await session.closed()


def rules(connect: str, path: str) -> set[tuple[str, str]]:
    """Schemes and names in the rules of a node that only brokers read; fails if a stranger reads it."""
    stranger = KazooClient(hosts=connect)
    stranger.start(timeout=20)
    try:
        with pytest.raises(NoAuthError):
            stranger.get(path)
        found, _ = stranger.get_acls(path.rpartition("/config/")[0] + layout.TOPICS)
        return {(rule.id.scheme, rule.id.id) for rule in found}
    finally:
        stranger.stop()
        stranger.close()


async def test_nodes_belong_to_the_certificate_of_the_broker(tmp_path: Path, secured_server: tuple[str, str]) -> None:
    # ZooKeeper 3.9 accepts TLS 1.3 only, unless its ssl.enabledProtocols says otherwise.
    plaintext, connect = secured_server
    await used(settings(tmp_path, connect, zookeeper_set_acl="true").options)
    assert rules(plaintext, f"/secured{layout.config('users', 'alice')}") == {("x509", "CN=broker"), ("world", "anyone")}


async def test_a_real_server_with_an_older_version_of_tls_is_reached(tmp_path: Path) -> None:
    with secured(tmp_path, ssl_enabledProtocols="TLSv1.2") as (_, connect):
        await used(settings(tmp_path, connect).options)


def sasl_settings(connect: str, password: str, **more: str) -> ServerOptions:
    return Settings(
        {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "zookeeper.connect": f"{connect}/sasl",
            "zookeeper.connection.timeout.ms": "2500",
            "zookeeper.set.acl": "true",
            "ottla.zookeeper.sasl": f"brokers:{password}",
            **more,
        }
    ).options


async def test_nodes_belong_to_the_user_of_sasl(secured_server: tuple[str, str]) -> None:
    plaintext, _ = secured_server
    for _ in range(2):
        session = await open_session(zookeeper_connection(sasl_settings(plaintext, "sentinel")))
        session.close()
        await session.closed()
    await used(sasl_settings(plaintext, "sentinel"))
    assert rules(plaintext, f"/sasl{layout.config('users', 'alice')}") == {("sasl", "brokers"), ("world", "anyone")}


async def test_a_wrong_password_of_sasl_is_refused_with_the_setting(
    secured_server: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ZooKeeperUnavailable, match=r"ended SASL as user brokers: .* See ottla\.zookeeper\.sasl") as refused:
        await open_session(zookeeper_connection(sasl_settings(secured_server[0], "wrong-secret")))
    assert "wrong-secret" not in str(refused.value) + caplog.text


async def test_a_session_with_sasl_survives_a_server_that_ends_during_the_exchange(secured_server: tuple[str, str]) -> None:
    session = await open_session(zookeeper_connection(sasl_settings(secured_server[0], "sentinel")))
    states: list[str] = []
    session.listen(states.append)
    back = asyncio.Event()
    authenticate, refused = session._sasl, iter([True])

    def fails_once(*arguments: object) -> None:
        """As if the server stopped meanwhile."""
        if next(refused, False):
            raise AuthFailedError
        authenticate(*arguments)
        loop.call_soon_threadsafe(back.set)

    loop = asyncio.get_running_loop()
    session._sasl = fails_once
    session.client._connection._socket.shutdown(socket.SHUT_RDWR)
    await asyncio.wait_for(back.wait(), 30)
    assert (await submit_and_wait(session, Op("create", layout.config("users", "bob"), b"credential"))).error is None
    assert "lost" not in states, "it is the same session"
    session.close()
    await session.closed()


KERBEROS = (
    "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true useTicketCache=false "
    'keyTab="{}" principal="{}@' + REALM + '";'
)


@contextlib.contextmanager
def with_kerberos(directory: Path, realm: Kerberos) -> Iterator[str]:
    """A ZooKeeper server that authenticates by Kerberos; yields its address by host name."""
    directory.mkdir()
    jaas = directory / "jaas.conf"
    jaas.write_text(f"Server {{ {KERBEROS.format(realm.keytab('zookeeper/localhost'), 'zookeeper/localhost')} }};")
    options = f"-Djava.security.auth.login.config={jaas} -Djava.security.krb5.conf={realm.environment['KRB5_CONFIG']}"
    lines = {"authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", f"{os.environ.get('JDK_JAVA_OPTIONS', '')} {options}")
        with running(directory / "zookeeper", lines) as made:
            yield made.connect.replace("127.0.0.1", "localhost")


async def test_nodes_belong_to_the_kerberos_principal_of_the_broker(tmp_path: Path, kerberos: Kerberos) -> None:
    own = KERBEROS.format(kerberos.keytab("kafka/localhost"), "kafka/localhost")
    with with_kerberos(tmp_path / "server", kerberos) as connect:
        for _ in range(2):
            session = await open_session(zookeeper_connection(sasl_settings(connect, "", **{"ottla.zookeeper.sasl": own})))
            session.close()
            await session.closed()
        await used(sasl_settings(connect, "", **{"ottla.zookeeper.sasl": own}))
        found = rules(connect, f"/sasl{layout.config('users', 'alice')}")
        assert found == {("sasl", f"kafka/localhost@{REALM}"), ("world", "anyone")}
        for other, problem in (
            (own.replace(str(kerberos.directory), "/none"), r"Kerberos: .* See ottla\.zookeeper\.sasl"),
            (own.replace("Krb5LoginModule required", 'Krb5LoginModule required serviceName="kafka"'), r"ended SASL GSSAPI: "),
        ):
            with pytest.raises(ZooKeeperUnavailable, match=problem):
                await open_session(zookeeper_connection(sasl_settings(connect, "", **{"ottla.zookeeper.sasl": other})))


def test_a_login_to_zookeeper_that_cannot_be_honoured_is_refused() -> None:
    for login, problem in (
        ("sentinel", "expected USER:PASSWORD, or the login module of Kerberos"),
        ("org.apache.kafka.common.security.plain.PlainLoginModule required;", "the login module of GSSAPI is"),
        ("com.sun.security.auth.module.Krb5LoginModule required secret=sentinel;", "option secret of .* has no meaning here"),
    ):
        with pytest.raises(ConfigError, match=rf"ottla\.zookeeper\.sasl: {problem}") as refused:
            zookeeper_connection(sasl_settings("h:1", "", **{"ottla.zookeeper.sasl": login}))
        assert "sentinel" not in str(refused.value)
    assert zookeeper_connection(sasl_settings("h:1", "a;b c;")).sasl == "brokers:a;b c;"


def test_sasl_to_zookeeper_without_its_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.server.store_factory.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"ottla\.zookeeper\.sasl: .*pip install 'ottla\[zookeeper-sasl\]'") as refused:
        zookeeper_connection(sasl_settings("h:1", "sentinel"))
    assert "sentinel" not in str(refused.value)


async def test_a_server_that_is_not_trusted_is_refused_with_the_reason(tmp_path: Path, zookeeper: Ensemble) -> None:
    for wrong, problem in (
        (Certificate.authority("other").issue("zookeeper"), "unable to get local issuer certificate"),
        (AUTHORITY.issue("zookeeper", names=["elsewhere.example"]), "IP address mismatch"),
    ):
        async with proxy(zookeeper, wrong, tmp_path) as connect:
            options = settings(tmp_path, connect, zookeeper_connection_timeout_ms="1500").options
            with pytest.raises(ZooKeeperUnavailable, match=f"TLS to 127.0.0.1:.* failed: {problem}"):
                await open_session(zookeeper_connection(options))


def test_settings_of_tls_to_zookeeper_are_refused_by_their_own_names(tmp_path: Path) -> None:
    for setting, text in (("zookeeper_ssl_keystore_location", "/none.p12"), ("zookeeper_ssl_cipher_suites", "TLS_NO_SUCH_WITH_SUITE")):
        with pytest.raises(ConfigError) as refused:
            zookeeper_tls(settings(tmp_path, "h:1", **{setting: text}).options)
        assert refused.value.name == setting.replace("_", ".") and "sentinel" not in str(refused.value)
