"""A Kerberos realm with a real key distribution center, of Debian's package krb5-kdc."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

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
