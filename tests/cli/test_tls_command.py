"""`ottla tls`: an authority and certificates that brokers and clients can use."""

import json
import ssl
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ottla.base.ssl_options import ListenerSslOptions
from ottla.cli.main import main
from ottla.net.tls.listener_tls import TlsState


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["tls", *arguments])


def test_one_command_makes_certificates_with_which_brokers_connect_to_each_other(tmp_path: Path) -> None:
    made = run("init", "kafka1.example", "10.0.0.2", "--client", "alice", "--dir", str(tmp_path / "tls"))
    assert made.exit_code == 0 and "ssl.keystore.location=" in made.output
    files = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "tls").iterdir()}
    assert files == dict.fromkeys(["ca.pem", "ca-key.pem", "kafka1.example.pem", "10.0.0.2.pem", "alice.pem"], 0o600)
    states = [
        TlsState.load(
            ListenerSslOptions.of(
                {
                    "ssl.keystore.type": "PEM", "ssl.keystore.location": str(tmp_path / "tls" / name),
                    "ssl.truststore.type": "PEM", "ssl.truststore.location": str(tmp_path / "tls" / "ca.pem"),
                    "ssl.client.auth": "required",
                }
            ),
            between_brokers=True,
        )
        for name in ("kafka1.example.pem", "10.0.0.2.pem", "alice.pem")
    ]  # fmt: skip
    for one in states:
        one.check_connects(states[0])
    shown = json.loads(run("show", "--dir", str(tmp_path / "tls"), "-o", "json").output)
    assert {row["subject"]: row["hosts"] for row in shown} == {
        "CN=Ottla private authority": [], "CN=alice": [],
        "CN=kafka1.example": ["127.0.0.1", "::1", "kafka1.example", "localhost"],
        "CN=10.0.0.2": ["10.0.0.2", "127.0.0.1", "::1", "localhost"],
    }  # fmt: skip
    assert all(row["days_left"] in (364, 3649) for row in shown)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    directory = str(tmp_path / "tls")
    assert run("init", "a", "--dir", directory).exit_code == 0
    before = {path: path.read_bytes() for path in (tmp_path / "tls").iterdir()}
    for arguments, problem in ((("init", "b"), "ca-key.pem exists"), (("issue", "a"), "a.pem exists"), (("issue", "../b"), "cannot name")):
        refused = run(*arguments, "--dir", directory)
        assert refused.exit_code == 1 and problem in refused.output
    assert {path: path.read_bytes() for path in (tmp_path / "tls").iterdir()} == before


def test_a_certificate_is_issued_later(tmp_path: Path) -> None:
    directory = str(tmp_path / "tls")
    assert "ottla tls init" in run("issue", "a", "--dir", directory).output
    run("init", "a", "--dir", directory)
    issued = run("issue", "b", "--host", "b.example", "--days", "7", "--dir", directory, "-o", "json")
    (row,) = json.loads(issued.output)
    assert (row["subject"], row["hosts"], row["days_left"]) == ("CN=b", ["b.example"], 6)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(row["file"])


@pytest.mark.parametrize("content", ["", "no certificate"])
def test_a_file_without_a_certificate_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.pem").write_text(content)
    refused = run("show", str(tmp_path / "x.pem"))
    assert refused.exit_code == 1 and "has no certificate" in refused.output


def test_secrets_come_from_files_never_from_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTTLA_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "password").write_text("sentinel\n")
    add = ["profile", "add", "p", "127.0.0.1:9092", "-X"]
    refused = CliRunner().invoke(main, [*add, "ssl.key.password=sentinel"])
    assert refused.exit_code == 2 and "write ssl_key_password=file:FILE" in refused.output and "sentinel" not in refused.output
    assert CliRunner().invoke(main, [*add, f"ssl.key.password=file:{tmp_path / 'password'}"]).exit_code == 0
    assert "sentinel" not in (tmp_path / "config.toml").read_text()
    shown = CliRunner().invoke(main, ["profile", "show", "p"])
    assert shown.exit_code == 0 and "sentinel" not in shown.output
    change = ["config", "set", "broker", "1", "listener.name.a.ssl.keystore.key=sentinel", "-b", "127.0.0.1:1"]
    refused = CliRunner().invoke(main, change)
    assert refused.exit_code == 2 and "file:FILE" in refused.output and "sentinel" not in refused.output
