"""Opens the coordination store of a process: an embedded file, or the ZooKeeper ensemble of a cluster of several processes."""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ottla.base import jaas
from ottla.base.options import ConfigError
from ottla.base.ports import NodeState, Op, Store, StoreResult
from ottla.base.ssl_options import SslOptions
from ottla.broker.metadata.configs import ServerOptions
from ottla.broker.metadata.features import NEWEST
from ottla.net.sasl.gssapi import GssapiClient, GssapiMissing, library
from ottla.net.sasl.mechanism import ServerRefused
from ottla.server.data_directory import STORE, CannotStart
from ottla.server.listeners import Listeners
from ottla.store import layout
from ottla.store.embedded.copies import copy_paths, remedy
from ottla.store.embedded.file import StoreDamaged, StoreFileError, StoreForeign
from ottla.store.embedded.store import EmbeddedStore

if TYPE_CHECKING:
    # Imported on use: a process with an embedded store does not need it.
    from ottla.store.zookeeper.session import Connect, ZooKeeperSession

log = logging.getLogger("ottla.server")

#: Interval of the warnings of a start that waits for the store.
WARN_EVERY_S = 3.0


class StoreFactory(Protocol):
    async def session(self) -> Store:
        """Raises: CannotStart."""
        ...

    async def close(self) -> None:
        """Ends all sessions."""
        ...


class EmbeddedStoreFactory:
    def __init__(self, data_dir: Path, failed: Callable[[str], None]) -> None:
        """Raises: CannotStart."""
        path = data_dir / STORE
        try:
            # The store has credentials of users, and secret settings.
            path.parent.mkdir(mode=0o700, exist_ok=True)
            self.store = EmbeddedStore(
                path, failed=lambda reason: failed(f"{reason}. Check the disk, then start again; the start reports what to do")
            )
        except StoreDamaged as error:
            raise CannotStart(f"{error}. {remedy(path, data_dir, now_s=time.time())}") from None
        except StoreForeign as error:
            damaged = f". If it is damaged: {remedy(path, data_dir, now_s=time.time())}" if copy_paths(path) else ""
            raise CannotStart(f"{error}{damaged}") from None
        except StoreFileError as error:
            raise CannotStart(str(error)) from None
        except OSError as error:
            reason = "it is not a directory" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
            raise CannotStart(f"cannot use {path.parent} for the coordination store: {reason}") from None

    async def session(self) -> Store:
        return self.store.session()

    async def close(self) -> None:
        await self.store.close()


class ZooKeeperStoreFactory:
    def __init__(self, connect: Connect, failed: Callable[[str], None]) -> None:
        self._connect = connect
        self._failed = failed
        self._sessions: list[ZooKeeperSession] = []

    async def session(self) -> Store:
        from ottla.store.zookeeper.opening import ZooKeeperUnavailable, open_session

        try:
            opened = await open_session(self._connect, failed=self._failed)
        except ZooKeeperUnavailable as error:
            raise CannotStart(str(error)) from None
        self._sessions.append(opened)
        return opened

    async def close(self) -> None:
        for session in self._sessions:
            session.close()
        await asyncio.gather(*(session.closed() for session in self._sessions))


def store_factory(options: ServerOptions, data_dir: Path, failed: Callable[[str], None]) -> StoreFactory:
    """The configured store; ``failed`` gets the reason when it becomes unusable. Raises: ConfigError, CannotStart."""
    if not options.zookeeper_connect:
        if options.zookeeper_set_acl:
            raise ConfigError("zookeeper.set.acl", "is about nodes in ZooKeeper, and zookeeper.connect is not set; leave it out")
        return EmbeddedStoreFactory(data_dir, failed)
    return ZooKeeperStoreFactory(zookeeper_connection(options), failed)


def zookeeper_connection(options: ServerOptions) -> Connect:
    """Connection settings of the ensemble. Raises: ConfigError."""
    from ottla.store.zookeeper.session import Connect

    _check_identity(options)
    waits_ms = options.zookeeper_connection_timeout_ms
    tls = zookeeper_tls(options) if options.zookeeper_ssl_client_enable else None
    try:
        connect = Connect.parse(
            options.zookeeper_connect,
            session_timeout_ms=options.zookeeper_session_timeout_ms,
            connection_timeout_ms=waits_ms if waits_ms >= 0 else None,
            tls=tls,
        )
    except ValueError as error:
        raise ConfigError("zookeeper.connect", str(error)) from None
    connect = replace(connect, secure=options.zookeeper_set_acl, digest=options.zookeeper_digest, **_sasl(options.zookeeper_sasl))
    if Listeners.of(options).anywhere:
        problem = "a broker that listens on every address must advertise one that other hosts can reach, as NAME://HOST:PORT"
        raise ConfigError("advertised.listeners", problem)
    return connect


def _check_identity(options: ServerOptions) -> None:
    """Nodes with rules belong to an identity, as in Kafka. Raises: ConfigError."""
    if options.zookeeper_digest and not _is_login(options.zookeeper_digest):
        raise ConfigError("ottla.zookeeper.digest", "expected USER:PASSWORD")
    certified = options.zookeeper_ssl_client_enable and options.zookeeper_ssl_keystore_location
    if options.zookeeper_set_acl and not (certified or options.zookeeper_digest or options.zookeeper_sasl):
        problem = "brokers have no identity at ZooKeeper; set zookeeper.ssl.client.enable and zookeeper.ssl.keystore.location, or"
        raise ConfigError("zookeeper.set.acl", f"{problem} ottla.zookeeper.sasl or ottla.zookeeper.digest")


def _is_login(text: str) -> bool:
    user, _, password = text.partition(":")
    return bool(user and password)


def _sasl(text: str) -> dict[str, Any]:
    """Settings of ``Connect`` for a value of ottla.zookeeper.sasl. Raises: ConfigError."""
    # A login module begins with its class and a flag; a password may have any character.
    if len(text.partition(":")[0].split()) < 2:
        if text and not _is_login(text):
            raise ConfigError(
                "ottla.zookeeper.sasl", "expected USER:PASSWORD, or the login module of Kerberos as in a JAAS file, with ; at its end"
            )
        if text and find_spec("puresasl") is None:
            raise ConfigError("ottla.zookeeper.sasl", "SASL to ZooKeeper needs pure-sasl: pip install 'ottla[zookeeper-sasl]'")
        return {"sasl": text}
    try:
        module = jaas.login_module(text, jaas.GSSAPI)
        library()
    except (jaas.JaasError, GssapiMissing) as error:
        raise ConfigError("ottla.zookeeper.sasl", str(error)) from None
    return {"mechanism": jaas.GSSAPI, "exchange": partial(_KerberosExchange, module)}


class _KerberosExchange:
    def __init__(self, module: jaas.LoginModule, host: str) -> None:
        self._client = GssapiClient(module, module.option("serviceName") or "zookeeper", host)

    def step(self, challenge: bytes) -> bytes | None:
        try:
            return self._client.step(challenge)
        except ServerRefused as error:
            raise PermissionError(str(error)) from None


def zookeeper_tls(options: ServerOptions) -> ssl.SSLContext:
    """The TLS context of connections to ZooKeeper. Reads files. Raises: ConfigError."""
    from ottla.net.tls.context import client_context

    protocol = options.zookeeper_ssl_protocol
    versions = options.zookeeper_ssl_enabled_protocols or (("TLSv1.2", "TLSv1.3") if protocol == "TLS" else (protocol,))
    texts = {
        "ssl.keystore.location": options.zookeeper_ssl_keystore_location,
        "ssl.keystore.password": options.zookeeper_ssl_keystore_password,
        "ssl.keystore.type": options.zookeeper_ssl_keystore_type or _store_type(options.zookeeper_ssl_keystore_location),
        "ssl.truststore.location": options.zookeeper_ssl_truststore_location,
        "ssl.truststore.password": options.zookeeper_ssl_truststore_password,
        "ssl.truststore.type": options.zookeeper_ssl_truststore_type or _store_type(options.zookeeper_ssl_truststore_location),
        "ssl.enabled.protocols": ",".join(versions),
        "ssl.cipher.suites": ",".join(options.zookeeper_ssl_cipher_suites),
        "ssl.endpoint.identification.algorithm": options.zookeeper_ssl_endpoint_identification_algorithm,
    }
    try:
        return client_context(SslOptions.of(texts)).context
    except ConfigError as error:
        raise ConfigError(f"zookeeper.{error.name}", error.problem) from None


def _store_type(location: str) -> str:
    """The type of a store by the end of its name, as ZooKeeper finds it."""
    return {".pem": "PEM", ".p12": "PKCS12"}.get(Path(location).suffix.lower(), "JKS")


async def submit_and_wait(session: Store, *ops: Op) -> StoreResult:
    """The outcome of a multi, after all earlier changes were delivered. Waits while the store is unreachable; can be cancelled."""
    began_s = warned_s = time.monotonic()
    while True:
        answer: asyncio.Future[StoreResult] = asyncio.get_running_loop().create_future()
        session.submit(ops, partial(_resolve, answer))
        result = await answer
        if result.error != "unavailable":
            return result
        if time.monotonic() - warned_s >= WARN_EVERY_S:
            warned_s = time.monotonic()
            log.warning("waiting for the coordination store, which has not answered for %.0f s", warned_s - began_s)
        await asyncio.sleep(0.1)


def _resolve(answer: asyncio.Future[StoreResult], result: StoreResult) -> None:
    # The store answers also if the wait was cancelled meanwhile.
    if not answer.done():
        answer.set_result(result)


async def read_and_watch(session: Store, prefix: str, seen: Callable[[NodeState], object]) -> None:
    """Passes every node below a path to ``seen``, and each later change. Returns when the present state was passed."""

    def changed(state: NodeState) -> None:
        seen(state)

    session.watch(prefix, changed)
    await submit_and_wait(session, Op("check", layout.BROKERS))


async def cluster_id(session: Store) -> str:
    """The cluster id, 22 characters as in Kafka. Created at the first start, before any log directory refers to it.

    Raises: CannotStart.
    """
    # A cluster that exists keeps its levels.
    await submit_and_wait(session, Op("create", layout.FEATURE, layout.encode_feature(layout.Features(levels=NEWEST))))
    created = urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=").decode()
    result = await submit_and_wait(session, Op("create", layout.CLUSTER_ID, layout.encode_cluster_id(created)))
    if result.error is None:
        return created
    stored: list[bytes] = []
    await read_and_watch(session, layout.CLUSTER_ID, lambda state: stored.append(state.data or b""))
    if not stored:
        raise CannotStart(f"the coordination store does not keep what is written to it: {result.error}")
    return layout.decode_cluster_id(stored[-1])
