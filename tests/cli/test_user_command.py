"""`ottla user` and `ottla token` against a server whose only listener has SASL; its first user exists before the first start."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from commands import without_headings
from serving import Serving

pytestmark = pytest.mark.server

SETTINGS = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "security.inter.broker.protocol": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
    "delegation.token.secret.key": "shared",
}


def ottla(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ottla", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL, timeout=60)


def good(*arguments: str, env: dict[str, str] | None = None) -> str:
    done = ottla(*arguments, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def profile(tmp_path: Path, bootstrap: str, user: str, password: str, **more: str) -> dict[str, str]:
    """The environment of a client that is this user."""
    path = tmp_path / f"{user}.toml"
    settings = {
        "bootstrap_servers": bootstrap, "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": user, "sasl_password": password, **more,
    }  # fmt: skip
    lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in settings.items())
    path.write_text(f'current = "c"\n[profiles.c]\n{lines}\n')
    return {"OTTLA_CONFIG": str(path)}


def configured(tmp_path: Path) -> list[str]:
    """The settings in a file: one is a secret."""
    path = tmp_path / "server.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in SETTINGS.items()))
    return ["--config", str(path)]


@pytest.fixture
def password(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text("s3cret\n")
    return path


def test_users_and_tokens_from_the_first_start_on(tmp_path: Path, password: Path) -> None:
    first = f"SCRAM-SHA-512=[name=admin,password-file={password}]"
    with Serving(tmp_path / "data", arguments=[*configured(tmp_path), "--init-scram", first], listen=False) as server:
        admin = profile(tmp_path, server.bootstrap, "admin", "s3cret")
        assert without_headings(good("user", "list", env=admin)).split() == ["admin", "SCRAM-SHA-512", "4096"]
        added = good("user", "add", "alice", "-m", "SCRAM-SHA-256", "-m", "SCRAM-SHA-512", "--password-env", "P", env={**admin, "P": "pw"})
        assert added == "alice\tadded\n"
        shown: dict[str, Any] = json.loads(good("user", "show", "alice", "-o", "json", env=admin))
        assert [one["mechanism"] for one in shown["credentials"]] == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
        alice = profile(tmp_path, server.bootstrap, "alice", "pw")
        assert "admin" in good("user", "list", env=alice)

        hmac = tmp_path / "hmac"
        made: Any = json.loads(good("token", "create", "--renewer", "User:admin", "--hmac-file", str(hmac), "-o", "json", env=alice))
        assert hmac.stat().st_mode & 0o777 == 0o600
        token = profile(tmp_path, server.bootstrap, made["token_id"], hmac.read_text().strip(), sasl_delegation_token="true")
        assert "admin" in good("user", "list", env=token)
        refused = ottla("token", "list", env=token)
        assert refused.returncode == 1
        assert "delegation token" in refused.stderr.lower()
        assert made["token_id"] in good("token", "list", env=admin)
        assert "expires" in good("token", "renew", made["token_id"], "--period", "1h", env=admin)
        assert "expires" in good("token", "expire", made["token_id"], "-y", env=alice)
        assert ottla("user", "list", env=token).returncode == 1

        assert good("user", "remove", "alice", "-y", env=admin) == "alice\tremoved\n"
        assert "refused the credentials" in ottla("user", "list", env=alice).stderr
        assert ottla("user", "add", "x", env=admin).returncode == 2, "no terminal to ask for a password"


def test_a_user_is_added_to_a_data_directory_before_the_first_start_and_init_scram_keeps_it(tmp_path: Path, password: Path) -> None:
    data_dir = tmp_path / "data"
    assert good("user", "add", "admin", "--password-file", str(password), "--data-dir", str(data_dir)) == "admin\tadded\n"
    other = tmp_path / "other"
    other.write_text("another")
    first = f"SCRAM-SHA-512=[name=admin,password-file={other}]"
    with Serving(data_dir, arguments=[*configured(tmp_path), "--init-scram", first], listen=False) as server:
        assert "admin" in good("user", "list", env=profile(tmp_path, server.bootstrap, "admin", "s3cret"))
        refused = ottla("user", "add", "x", "--password-file", str(password), "--data-dir", str(data_dir))
        assert refused.returncode == 1
        assert "use" in refused.stderr


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("SCRAM-SHA-512=[name=admin,password=SECRET]", "a password in an argument can be seen"),
        ("SCRAM-SHA-1=[name=admin,prompt]", "SCRAM-SHA-1 is not one of"),
        ("SCRAM-SHA-512=[password-env=X]", "the name is missing"),
        ("SCRAM-SHA-512=[name=a,salt=x]", "'salt' is not one of"),
        ("SCRAM-SHA-512=[name=a]", "expected one of password-file"),
        ("SCRAM-SHA-512=[name=a,iterations=1,prompt]", "iterations are 4096 to 16384"),
        ("name=admin", "expected SCRAM-SHA-512="),
    ],
)
def test_a_wrong_first_user_refuses_the_start(tmp_path: Path, text: str, problem: str) -> None:
    done = ottla("serve", "--data-dir", str(tmp_path / "data"), "--init-scram", text)
    assert done.returncode == 2
    assert problem in done.stderr
    assert "SECRET" not in done.stderr
