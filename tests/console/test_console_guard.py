"""What protects the console: hosts, tokens, roles, headers, sessions."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import httpx
import pytest
from browsing import ORIGIN, Browser, browsing, seen
from starlette.routing import Route

from ottla.base.listeners import is_loopback
from ottla.base.passwords import hashed, is_correct
from ottla.console.app import create_app, routes
from ottla.console.options import ConsoleOptions, Login, User
from ottla.console.web.guard import LOGIN_BYTES_MAX
from ottla.console.web.page import ROOT, environment, static_files
from ottla.console.web.roles import Role
from ottla.console.web.sessions import IDLE_S, LIFE_S, Sessions, UserIdentity

NOWHERE = "127.0.0.1:9"
#: Changes that need no role: whoever is not logged in yet, or wants to go.
WITHOUT_ROLE = {"/login", "/logout"}


def test_a_request_for_another_host_is_refused(offline: Browser) -> None:
    answer = offline.get("/healthz", headers={"host": "evil.example:8080"})
    assert answer.status_code == 421
    assert "ottla console --host evil.example" in answer.text


def test_a_further_name_is_answered() -> None:
    with browsing(NOWHERE, hosts=("console.example",)) as browser:
        assert browser.get("/healthz", headers={"host": "console.example"}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{}, {"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}],
    ids=["without the token", "from another origin", "from another site"],
)
def test_a_foreign_form_is_refused(offline: Browser, headers: dict[str, str]) -> None:
    token = {} if not headers else {"csrf": offline.token()}
    answer = offline.client.post("/logout", data=token, headers=headers)
    assert answer.status_code == 403
    assert "no longer valid" in answer.text


def test_the_token_of_another_session_is_refused(offline: Browser) -> None:
    foreign = offline.token()
    offline.client.cookies.clear()
    assert offline.client.post("/logout", data={"csrf": foreign}).status_code == 403


def test_a_form_of_the_console_is_accepted(offline: Browser) -> None:
    answer = offline.post("/logout", headers={"origin": ORIGIN, "sec-fetch-site": "same-origin"}, follow_redirects=False)
    assert answer.status_code == 303


def test_a_form_above_the_limit_is_refused(offline: Browser) -> None:
    answer = offline.client.post("/logout", headers={"content-length": str(10**9), "content-type": "application/x-www-form-urlencoded"})
    assert answer.status_code == 413


def test_every_answer_forbids_inline_script_and_framing(offline: Browser) -> None:
    for path in ("/", "/static/console.css", "/nowhere", "/login"):
        headers = offline.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"], path
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"


def test_no_template_has_inline_script_or_style() -> None:
    for file in ROOT.joinpath("templates").iterdir():
        text = file.read_text()
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=|javascript:", text), file.name
        assert "|safe" not in text.replace(" ", ""), f"{file.name} switches escaping off"


def test_every_template_compiles() -> None:
    for name in environment().list_templates(extensions=["html"]):
        environment().get_template(name)


def test_static_files_are_cached_for_ever_under_their_hash(offline: Browser) -> None:
    _, tag = static_files()["console.css"]
    assert "immutable" in offline.get(f"/static/console.css?v={tag}").headers["cache-control"]
    assert offline.get("/static/console.css?v=old").headers["cache-control"] == "no-cache"
    assert offline.get("/static/console.css", headers={"if-none-match": f'"{tag}"'}).status_code == 304
    assert offline.get("/static/..%2fapp.py").status_code == 404


def test_every_change_declares_a_role() -> None:
    changes = [route for route in routes if isinstance(route, Route) and route.methods and "POST" in route.methods]
    undeclared = {route.path for route in changes if not hasattr(route.endpoint, "change")}
    assert undeclared == WITHOUT_ROLE
    handlers = [route for route in routes if isinstance(route, Route) and hasattr(route.endpoint, "change")]
    assert all(route.methods == {"POST"} for route in handlers), "a change is sent by POST alone"


def test_a_page_that_does_not_exist_says_so(offline: Browser) -> None:
    answer = offline.get("/nowhere")
    assert answer.status_code == 404
    assert "There is no page /nowhere" in seen(answer.text)


def test_a_cluster_that_cannot_be_reached_is_a_page_with_a_remedy(offline: Browser) -> None:
    text = offline.text("/")
    assert "The cluster cannot be reached" in text or "is being measured" in text


# Login


def login(**roles: Role) -> Login:
    """Users whose password is their name."""
    return Login(users={name: User(name, role, hashed(name, b"salt")) for name, role in roles.items()})


@pytest.fixture
def audited(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_pages_need_a_login(audited: Path) -> None:
    with browsing(NOWHERE, login=login(alice=Role.VIEWER), audit=audited) as browser:
        answer = browser.get("/?a=b", follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=%2F%3Fa%3Db")
        assert browser.get("/healthz").status_code == 200
        assert browser.get("/", headers={"accept": "text/event-stream"}).status_code == 401


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8080/static/?", "127.0.0.1:8080/login?", "localhost/static/#", "evil@localhost", "localhost\\static"]
)
def test_a_host_header_with_more_than_a_name_is_refused(host: str) -> None:
    """Starlette 0.46 takes the path of a request from it, so that such a request needed no login."""
    with browsing(NOWHERE, login=login(alice=Role.VIEWER)) as browser:
        answer = browser.get("/flight", headers={"host": host}, follow_redirects=False)
    assert answer.status_code == 421 and "Upload" not in answer.text


def test_a_login_begins_a_new_session_and_is_audited(audited: Path) -> None:
    with browsing(NOWHERE, login=login(alice=Role.EDITOR), audit=audited) as browser:
        browser.get("/login")
        before = browser.client.cookies["ottla-console"]
        answer = browser.post("/login", {"name": "alice", "password": "alice", "next": "/?x=1"}, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/?x=1")
        assert browser.client.cookies["ottla-console"] != before
        assert "alice" in browser.get("/").text
    (line,) = lines(audited)
    assert (line["action"], line["outcome"], line["user"], line["role"]) == ("login", "done", "alice", "editor")


def test_a_wrong_password_is_refused_and_then_delayed(audited: Path) -> None:
    with browsing(NOWHERE, login=login(alice=Role.EDITOR), audit=audited) as browser:
        codes = [browser.post("/login", {"name": name, "password": "x"}).status_code for name in ["alice", "nobody"] * 5 + ["alice"]]
        assert codes == [401] * 10 + [429]
    assert {line["outcome"] for line in lines(audited)} == {"refused"}


def test_the_form_of_somebody_who_is_not_logged_in_is_small(audited: Path) -> None:
    with browsing(NOWHERE, login=login(alice=Role.EDITOR), audit=audited) as browser:
        large = {"name": "alice", "password": "x" * LOGIN_BYTES_MAX}
        assert browser.post("/login", large).status_code == 413
        assert browser.client.post("/login", headers={"content-length": "9" * 5_000}).status_code == 413
        assert browser.post("/login", {"name": "alice", "password": "alice"}, follow_redirects=False).status_code == 303


async def test_wrong_passwords_at_the_same_time_are_counted_too(audited: Path) -> None:
    app = create_app(ConsoleOptions(bootstrap=NOWHERE, login=login(alice=Role.EDITOR), audit=audited))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=ORIGIN) as client:
        [token] = re.findall(r'name="csrf" content="([^"]+)"', (await client.get("/login")).text)
        form = {"csrf": token, "name": "alice", "password": "x"}
        codes = [answer.status_code for answer in await asyncio.gather(*(client.post("/login", data=form) for _ in range(14)))]
    assert sorted(codes) == [401] * 10 + [429] * 4


@pytest.mark.parametrize("wanted", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)"])
def test_a_login_leads_to_no_other_site(audited: Path, wanted: str) -> None:
    with browsing(NOWHERE, login=login(alice=Role.EDITOR), audit=audited) as browser:
        answer = browser.post("/login", {"name": "alice", "password": "alice", "next": wanted}, follow_redirects=False)
        assert answer.headers["location"] == "/"


def test_after_a_logout_the_old_cookie_is_worth_nothing(audited: Path) -> None:
    with browsing(NOWHERE, login=login(alice=Role.EDITOR), audit=audited) as browser:
        browser.post("/login", {"name": "alice", "password": "alice"}, follow_redirects=False)
        old = browser.client.cookies["ottla-console"]
        browser.client.post("/logout", data={"csrf": re.search(r'content="([^"]{40,})"', browser.get("/").text)[1]})  # type: ignore[index]
        browser.client.cookies.clear()
        assert browser.get("/", headers={"cookie": f"ottla-console={old}"}, follow_redirects=False).status_code == 303


def test_the_browser_holds_an_http_only_cookie_and_no_credentials(offline: Browser) -> None:
    cookie = offline.get("/login", follow_redirects=False).headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Lax" in cookie and "Secure" not in cookie
    with browsing(NOWHERE, is_https=True) as browser:
        assert "; Secure" in browser.get("/login", follow_redirects=False).headers["set-cookie"]


def test_a_password_hash_accepts_its_password_alone() -> None:
    stored = hashed("open sesame", b"salt")
    assert is_correct("open sesame", stored)
    assert not is_correct("open", stored)
    assert not is_correct("", "scrypt:nonsense")
    assert "sesame" not in stored


def test_sessions_end_when_idle_when_old_and_when_there_are_too_many() -> None:
    now = [0.0]
    sessions = Sessions(lambda: now[0], most=2)
    first = sessions.begin()
    now[0] = IDLE_S + 1
    assert sessions.find(first.id) is None
    second = sessions.begin()
    while now[0] < LIFE_S + 2 * IDLE_S:
        now[0] += IDLE_S / 2
        found = sessions.find(second.id)
    assert found is None
    many = [sessions.begin() for _ in range(3)]
    assert len(sessions) == 2 and sessions.find(many[0].id) is None


@pytest.mark.parametrize(
    ("host", "expected"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("a.b", False)]
)
def test_loopback_addresses_are_known(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
    assert ConsoleOptions(bootstrap=NOWHERE, host=host).is_loopback is expected


def test_requests_without_a_cookie_end_no_login(offline: Browser) -> None:
    sessions = Sessions(lambda: 0.0, most=2)
    alice = sessions.begin(UserIdentity("alice", Role.ADMIN, "password"))
    for _ in range(5):
        sessions.begin()
    assert sessions.find(alice.id) is alice and len(sessions) == 3
    sessions.end(alice)
    assert sessions.find(alice.id) is None
    assert "set-cookie" not in offline.get("/healthz").headers, "a supervisor begins no sessions"
