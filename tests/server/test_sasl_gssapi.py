"""GSSAPI with a real key distribution center, of Debian's package krb5-kdc. Skipped without it or without ottla[gssapi]."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ottla
from ottla.testing import broker
from ottla.wire import errors

pytestmark = pytest.mark.server
REALM = "OTTLA.TEST"
TOOLS = "/usr/sbin"


class Kerberos:
    """A realm with a key distribution center on a loopback port, and keytabs of its principals."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        config = directory / "krb5.conf"
        config.write_text(
            f"""[libdefaults]
 default_realm = {REALM}
 dns_lookup_kdc = false
 dns_lookup_realm = false
 dns_canonicalize_hostname = false
 rdns = false
[realms]
 {REALM} = {{
  kdc = 127.0.0.1:{self.port}
 }}
[domain_realm]
 localhost = {REALM}
"""
        )
        (directory / "kdc.conf").write_text(
            f"""[kdcdefaults]
 kdc_listen = 127.0.0.1:{self.port}
 kdc_tcp_listen = 127.0.0.1:{self.port}
[realms]
 {REALM} = {{
  database_name = {directory}/principal
  key_stash_file = {directory}/stash
  acl_file = {directory}/acl
 }}
[logging]
 kdc = FILE:{directory}/kdc.log
"""
        )
        self.environment = {"KRB5_CONFIG": str(config), "KRB5_KDC_PROFILE": str(directory / "kdc.conf"), "KRB5RCACHETYPE": "none"}
        self._run("kdb5_util", "create", "-s", "-P", "master", "-r", REALM)
        self.process = subprocess.Popen([f"{TOOLS}/krb5kdc", "-n"], env={**os.environ, **self.environment}, stdout=subprocess.DEVNULL)
        deadline_s = time.monotonic() + 30
        while time.monotonic() < deadline_s:
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            time.sleep(0.02)
        raise AssertionError("the key distribution center does not listen")

    def keytab(self, principal: str) -> Path:
        """Creates a principal."""
        path = self.directory / (principal.replace("/", "-") + ".keytab")
        self._run("kadmin.local", "-q", f"addprinc -randkey {principal}@{REALM}")
        self._run("kadmin.local", "-q", f"ktadd -k {path} {principal}@{REALM}")
        return path

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            [f"{TOOLS}/{command[0]}", *command[1:]], env={**os.environ, **self.environment}, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(10)


@pytest.fixture
def kerberos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kerberos]:
    pytest.importorskip("gssapi", reason="ottla[gssapi] is not installed")
    if shutil.which("krb5kdc", path=TOOLS) is None or shutil.which("kadmin.local", path=TOOLS) is None:
        pytest.skip("no key distribution center: Debian's packages are krb5-kdc and krb5-admin-server")
    realm = Kerberos(tmp_path)
    for name, value in realm.environment.items():
        monkeypatch.setenv(name, value)
    try:
        yield realm
    finally:
        realm.stop()


def test_a_client_with_a_ticket_is_authenticated(kerberos: Kerberos) -> None:
    module = 'com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true keyTab="{}" principal="{}@' + REALM + '";'
    service, alice = kerberos.keytab("kafka/localhost"), kerberos.keytab("alice/workstation")
    settings = {
        "listeners": "SASL_PLAINTEXT://localhost:0",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "GSSAPI",
        "listener.name.sasl_plaintext.gssapi.sasl.jaas.config": module.format(service, "kafka/localhost"),
        "delegation.token.secret.key": "key",
        "connections.max.reauth.ms": "3600000",
    }
    with broker(settings=settings) as started:
        client: dict[str, Any] = {
            "bootstrap_servers": f"localhost:{started.port}", "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "GSSAPI",
            "sasl_kerberos_service_name": "kafka",
        }  # fmt: skip
        with ottla.Admin(**client, sasl_jaas_config=module.format(alice, "alice/workstation")) as admin:
            assert admin.create_delegation_token().owner == "User:alice"
        assert mapped(kerberos, settings, client, module.format(alice, "alice/workstation")) == "User:WORKSTATION"
        kerberos.keytab("other/localhost")
        wrong: dict[str, Any] = {**client, "sasl_kerberos_service_name": "other"}
        with (
            ottla.Admin(**wrong, sasl_jaas_config=module.format(alice, "alice/workstation")) as admin,
            pytest.raises(errors.SaslAuthenticationFailed, match=r"ticket isn't for us|invalid credentials"),
        ):
            admin.list_topics()
        with (
            ottla.Admin(**client, sasl_jaas_config=module.format(kerberos.directory / "none", "alice/workstation")) as admin,
            pytest.raises(errors.SaslAuthenticationFailed, match="Kerberos: "),
        ):
            admin.list_topics()


def mapped(kerberos: Kerberos, settings: dict[str, str], client: dict[str, Any], login: str) -> str:
    """The principal of alice/workstation on a broker with another rule."""
    rules = "RULE:[2:$2@$0](.*@OTTLA[.]TEST)s/@.*///U"
    with broker(settings={**settings, "sasl.kerberos.principal.to.local.rules": rules}) as other:
        wanted = {**client, "bootstrap_servers": f"localhost:{other.port}"}
        with ottla.Admin(**wanted, sasl_jaas_config=login) as admin:
            return admin.create_delegation_token().owner
