"""Login by OpenID Connect: what a provider's answer must be, and who gets which role."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from browsing import Browser, browsing, seen
from cryptography.hazmat.primitives.asymmetric import rsa
from identity_provider import CLIENT_ID, CLIENT_SECRET, Provider, provider

from ottla.base.options import ConfigError
from ottla.base.passwords import hashed
from ottla.console.options import Login, Oidc, read_login
from ottla.console.web.oidc import LoginFailed, identity_of
from ottla.console.web.roles import Role

NOWHERE = "127.0.0.1:9"
ROLES = {"admins": Role.ADMIN, "readers": Role.VIEWER}


@pytest.fixture(scope="module")
def idp() -> Iterator[Provider]:
    with provider() as made:
        yield made


@pytest.fixture
def browser(idp: Provider, tmp_path: Path) -> Iterator[Browser]:
    oidc = Oidc(issuer=idp.issuer, client_id=CLIENT_ID, client_secret=CLIENT_SECRET, roles=ROLES)
    with browsing(NOWHERE, login=Login(oidc=oidc), audit=tmp_path / "audit") as made:
        yield made


def through(browser: Browser) -> httpx.Response:
    """Follows the redirects to the provider and back; the last answer of the console."""
    to_provider = browser.get("/login/oidc?next=/topics", follow_redirects=False)
    assert to_provider.status_code == 302, to_provider.text
    back = httpx.get(to_provider.headers["location"])
    assert back.status_code == 302, back.text
    location = back.headers["location"]
    assert location.startswith("http://127.0.0.1:8080/login/callback")
    return browser.get(location.removeprefix("http://127.0.0.1:8080"), follow_redirects=False)


def test_a_user_of_the_provider_gets_the_highest_of_his_roles(browser: Browser, idp: Provider, tmp_path: Path) -> None:
    idp.claims = {"preferred_username": "alice", "groups": ["readers", "admins", "others"]}
    answer = through(browser)
    assert (answer.status_code, answer.headers["location"]) == (303, "/topics")
    assert "alice" in browser.get("/nowhere").text and "admin" in browser.get("/nowhere").text
    line = json.loads((tmp_path / "audit").read_text().splitlines()[-1])
    assert (line["user"], line["role"], line["how"], line["outcome"]) == ("alice", "admin", "oidc", "done")


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        ({"preferred_username": "bob", "groups": ["others"]}, "bob has no role"),
        ({"preferred_username": "bob"}, "bob has no role"),
        ({"preferred_username": "bob", "groups": "readers", "aud": "another"}, "not valid"),
        ({"preferred_username": "bob", "groups": "readers", "iss": "http://evil.example"}, "not valid"),
        ({"preferred_username": "bob", "groups": "readers", "exp": 1_000_000}, "not valid"),
        ({"preferred_username": "bob", "groups": "readers", "nonce": "replayed"}, "not valid"),
    ],
    ids=["another group", "no groups", "another audience", "another issuer", "expired", "replayed"],
)
def test_an_answer_that_is_not_for_this_login_is_refused(
    browser: Browser, idp: Provider, tmp_path: Path, claims: dict[str, str], problem: str
) -> None:
    idp.claims = claims
    answer = through(browser)
    assert answer.status_code == 403 and problem in seen(answer.text)
    assert browser.get("/topics", follow_redirects=False).status_code == 303
    assert json.loads((tmp_path / "audit").read_text().splitlines()[-1])["outcome"] == "refused"


def test_a_token_with_a_foreign_signature_is_refused(browser: Browser, idp: Provider) -> None:
    idp.claims = {"preferred_username": "mallory", "groups": "admins"}
    own, idp.key = idp.key, rsa.generate_private_key(public_exponent=65537, key_size=2048)
    try:
        assert through(browser).status_code == 403
    finally:
        idp.key = own


def test_an_answer_without_the_state_of_the_session_is_refused(browser: Browser, idp: Provider) -> None:
    idp.claims = {"preferred_username": "alice", "groups": "admins"}
    browser.get("/login/oidc", follow_redirects=False)
    assert browser.get("/login/callback?code=x&state=forged", follow_redirects=False).status_code == 403


def test_behind_a_proxy_the_provider_answers_to_https(idp: Provider) -> None:
    oidc = Oidc(issuer=idp.issuer, client_id=CLIENT_ID, client_secret=CLIENT_SECRET, roles=ROLES)
    with browsing(NOWHERE, login=Login(oidc=oidc), is_https=True) as browser:
        location = browser.get("/login/oidc", follow_redirects=False).headers["location"]
    assert "redirect_uri=https%3A%2F%2F127.0.0.1%3A8080%2Flogin%2Fcallback" in location


def test_a_provider_that_cannot_be_reached_is_said() -> None:
    oidc = Oidc(issuer="http://127.0.0.1:9", client_id="a", client_secret="b", roles=ROLES)
    with browsing(NOWHERE, login=Login(oidc=oidc)) as browser:
        answer = browser.get("/login/oidc", follow_redirects=False)
        assert answer.status_code == 502 and "identity provider cannot be used" in answer.text


@pytest.mark.parametrize(("claims", "name"), [({"email": "a@b.c", "sub": "1"}, "a@b.c"), ({"sub": "1"}, "1")])
def test_a_name_comes_from_the_first_claim_that_is_there(claims: dict[str, str], name: str) -> None:
    oidc = Oidc(issuer="i", client_id="c", client_secret="s", roles=ROLES)
    assert identity_of(oidc, {**claims, "groups": "readers"}).name == name
    with pytest.raises(LoginFailed, match="no name"):
        identity_of(oidc, {"groups": "readers"})


# The login file


def test_a_login_file_has_users_and_a_provider(tmp_path: Path) -> None:
    file = tmp_path / "login.toml"
    file.write_text(
        f'[users.alice]\nrole = "editor"\npassword = "{hashed("x", b"salt")}"\n[oidc]\nissuer = "https://id.example"\nclient_id = "c"\n'
        'client_secret = "env:SECRET"\nroles = {"a" = "admin"}\n'
    )
    login = read_login(file, {"SECRET": "s"})
    assert login.users["alice"].role is Role.EDITOR
    assert login.oidc is not None and (login.oidc.client_secret, login.oidc.roles) == ("s", {"a": Role.ADMIN})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "nobody could log in"),
        ("x = 1", "unknown table x"),
        ('[users.a]\npassword = "secret"', "not a password"),
        ('[users.a]\nrole = "god"\npassword = "scrypt:1"', "viewer, editor or admin"),
        ('[users.a]\nrights = "all"', "unknown key rights"),
        ('[oidc]\nissuer = "https://a"', "client_id is missing"),
        ('[oidc]\nissuer = "http://a"\nclient_id = "c"\nclient_secret = "env:S"', "https://"),
        ('[oidc]\nissuer = "https://a"\nclient_id = "c"\nclient_secret = "plain"', "file:PATH, or env:NAME"),
        ("[users", "cannot read"),
    ],
)
def test_a_login_file_that_is_not_valid_says_where(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "login.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        read_login(file, {"S": "s"})
