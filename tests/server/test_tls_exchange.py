"""Certificates exchanged while a broker serves, warnings before they expire, and secrets that are written nowhere."""

import asyncio
import base64
import os
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from socket_peers import until

import ottla
from certificates import Certificate
from ottla.base.ids import ConnectionId
from ottla.base.options import ConfigError
from ottla.base.ports import NodeState, StoreResult
from ottla.base.ssl_options import ListenerSslOptions
from ottla.broker.events import RequestArrived, StoreAnswered, StoreChanged
from ottla.net.tls.listener_tls import ListenerTls, TlsState
from ottla.net.tls.transport import HandshakeSteps
from ottla.server.certificate_renewal import CertificateRenewal
from ottla.server.flight_recorder import FlightRecorder
from ottla.server.metrics.counters import Counters
from ottla.store import layout
from ottla.wire import framing
from ottla.wire.errors import InvalidRequest
from ottla.wire.messages.incremental_alter_configs import AlterableConfig, AlterConfigsResource, IncrementalAlterConfigsRequest
from serving import Serving

pytestmark = pytest.mark.server

SENTINEL = "sentinel-5f1b"
AUTHORITY = Certificate.authority()


def options(path: Path) -> ListenerSslOptions:
    return ListenerSslOptions.of({"ssl.keystore.type": "PEM", "ssl.keystore.location": str(path)})


class Renewed:
    """A renewal of one listener, without sockets."""

    def __init__(self, path: Path) -> None:
        self.options = options(path)
        self.threads = ThreadPoolExecutor(1)
        self.tls = ListenerTls(TlsState.load(self.options, between_brokers=False), HandshakeSteps(self.threads))
        self.counters = Counters()
        self.renewal = CertificateRenewal(
            {"SSL": self.tls},
            lambda name: self.options,
            inter_broker="PLAINTEXT",
            executor=self.threads,
            counters=self.counters,
            look_s=0.05,
        )

    @property
    def serial(self) -> int:
        own = self.tls.present.context.own
        assert own is not None
        return own.certificate.serial_number

    async def __aenter__(self) -> "Renewed":
        self.renewal.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.renewal.stop()
        self.threads.shutdown()


def replace_file(path: Path, certificate: Certificate) -> None:
    certificate.write_pem(path)
    # The clock of files is coarse.
    os.utime(path, (time.time() + 5, time.time() + 5))


async def test_a_changed_file_is_used_for_new_connections(tmp_path: Path) -> None:
    path = AUTHORITY.issue("broker").write_pem(tmp_path / "own.pem")
    async with Renewed(path) as run:
        new = AUTHORITY.issue("broker")
        replace_file(path, new)
        await until(lambda: run.counters.certificate_exchanges)
        assert run.serial == new.certificate.serial_number


async def test_a_file_that_cannot_be_used_leaves_the_present_certificate_and_warns_once(tmp_path: Path, caplog: Any) -> None:
    path = AUTHORITY.issue("broker").write_pem(tmp_path / "own.pem")
    async with Renewed(path) as run:
        before = run.serial
        replace_file(path, AUTHORITY.issue("another name"))
        await until(lambda: "keeps its certificates" in caplog.text)
        await asyncio.sleep(0.2)
        assert caplog.text.count("keeps its certificates") == 1 and "another distinguished name" in caplog.text
        assert run.serial == before and run.counters.certificate_exchanges == 0


async def test_certificates_that_expire_within_30_days_are_warned_of_and_counted(tmp_path: Path, caplog: Any) -> None:
    path = AUTHORITY.issue("broker", days=29).write_pem(tmp_path / "own.pem")
    async with Renewed(path) as run:
        await until(lambda: run.counters.certificate_days_left is not None)
        assert 28.9 < (run.counters.certificate_days_left or 0) < 29
        await asyncio.sleep(0.2)
        assert caplog.text.count("the certificate of CN=broker expires on ") == 1
        replace_file(path, AUTHORITY.issue("broker", days=31))
        await until(lambda: (run.counters.certificate_days_left or 0) > 30)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    directory = tmp_path_factory.mktemp("exchange")
    AUTHORITY.issue("broker").write_pkcs12(directory / "own.p12", SENTINEL)
    (directory / "server.properties").write_text(f"""
listeners=SECURE://127.0.0.1:0,PLAINTEXT://127.0.0.1:0
listener.security.protocol.map=SECURE:SSL,PLAINTEXT:PLAINTEXT
listener.name.secure.ssl.keystore.type=PKCS12
listener.name.secure.ssl.keystore.location={directory / "own.p12"}
listener.name.secure.ssl.keystore.password={SENTINEL}
listener.name.secure.ssl.key.password={SENTINEL}
ssl.truststore.type=PEM
ssl.truststore.certificates={AUTHORITY.pem.replace(chr(10), chr(92) + "n")}
""")
    arguments = ["--config", str(directory / "server.properties")]
    with Serving(directory / "data", arguments=arguments, listen=False) as server:
        yield server


def settings(server: Serving) -> dict[str, Any]:
    return {
        "bootstrap_servers": server.bootstrap,
        "security_protocol": "SSL",
        "ssl_truststore_type": "PEM",
        "ssl_truststore_certificates": AUTHORITY.pem,
    }


def serial(server: Serving) -> int:
    """Of the certificate that the broker shows."""
    return x509.load_pem_x509_certificate(ssl.get_server_certificate(server.address).encode()).serial_number


def eventually(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline_s, "what was waited for did not happen"
        time.sleep(0.05)


def test_certificates_are_exchanged_by_a_change_of_settings_and_secrets_are_written_nowhere(secured: Serving, tmp_path: Path) -> None:
    prefix = "listener.name.secure.ssl.keystore."
    new = AUTHORITY.issue("broker")
    location = new.write_pkcs12(tmp_path / "new.p12", SENTINEL + "-new")
    with ottla.Admin(**settings(secured)) as admin:
        broker = ottla.Resource(ottla.ResourceType.BROKER, "1")
        for change, problem in (
            ({prefix + "location": "/none"}, "cannot read /none"),
            ({prefix + "location": str(location)}, "is the password right"),
            ({"listener.name.plaintext.ssl.keystore.location": str(location)}, "listener PLAINTEXT of this broker has no TLS"),
        ):
            with pytest.raises(InvalidRequest, match=problem) as refused:
                admin.incremental_alter_config(broker, change)
            assert SENTINEL not in str(refused.value)
        admin.incremental_alter_config(broker, {prefix + "location": str(location), prefix + "password": SENTINEL + "-new",
                                                "listener.name.secure.ssl.key.password": SENTINEL + "-new"})  # fmt: skip
        eventually(lambda: serial(secured) == new.certificate.serial_number)
        described = admin.describe_configs([broker])
    assert SENTINEL not in repr(described) and "/new.p12" in repr(described)
    assert SENTINEL not in secured.logs()
    assert SENTINEL.encode() not in Path(f"/proc/{secured.pid}/cmdline").read_bytes()


SECRETS = ("ssl.keystore.password", "ssl.key.password", "ssl.keystore.key", "ssl.keystore.certificate.chain",
           "ssl.truststore.password", "ssl.truststore.certificates")  # fmt: skip


def test_flight_records_have_no_secrets(tmp_path: Path) -> None:
    names = [*SECRETS, *(f"listener.name.secure.{name}" for name in SECRETS)]
    recorder = FlightRecorder(1_000_000)
    configs = [AlterableConfig(name=name, value=SENTINEL) for name in names]
    body = IncrementalAlterConfigsRequest(resources=[AlterConfigsResource(resource_type=4, resource_name="1", configs=configs)])
    frame = bytearray(b"".join(framing.encode_request(body, 1, 7, "test"))[framing.SIZE_BYTES :])  # type: ignore[arg-type]
    event = RequestArrived(connection=ConnectionId(1), correlation_id=7, api_key=44, api_version=1, client_id="test", body=body)
    recorder.note(1, event, memoryview(frame))
    recorder.note(2, event, None)
    node = NodeState("/config/brokers/1", layout.encode_config(dict.fromkeys(names, SENTINEL)), 1)
    recorder.note(3, StoreChanged(state=node), None)
    recorder.note(4, StoreAnswered(ticket=1, result=StoreResult((node,))), None)
    path = recorder.write(tmp_path, broker_id=1, settings=dict.fromkeys(names, SENTINEL), error=ConfigError("x", "y"))
    text = path.read_text()
    assert SENTINEL not in text and not any(text_of(SENTINEL, shift) in text for shift in range(3))
    assert text.count("listener.name.secure.ssl.key.password") == 1


def text_of(secret: str, shift: int) -> str:
    """The middle of the secret's Base64 form, ``shift`` bytes after a multiple of three."""
    return base64.b64encode(b"x" * shift + secret.encode()).decode()[4:-8]
