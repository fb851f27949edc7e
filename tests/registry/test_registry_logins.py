"""Logins of the registry's HTTP API: what wrong ones cost, and whom they make wait."""

from __future__ import annotations

import asyncio

import httpx
import pytest

pytest.importorskip("starlette")
from starlette.responses import PlainTextResponse

from ottla.base import passwords
from ottla.base.passwords import hashed
from ottla.net.password_check import WRONG_MAX
from ottla.registry.basic_auth import REMEMBERED_MAX, WRITER, BasicAuth, Users


class Api:
    """An application behind a login, of the user alice with the password right; counts the slow checks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.checked: list[str] = []
        self.users = Users({"alice": (hashed("right", b"salt"), WRITER)})
        self.app = BasicAuth(PlainTextResponse("content"), self.users)
        is_correct = passwords.is_correct

        def counted(password: str, stored: str) -> bool:
            self.checked.append(password)
            return is_correct(password, stored)

        monkeypatch.setattr(passwords, "is_correct", counted)

    async def get(self, password: str, *, address: str = "10.0.0.1", name: str = "alice") -> httpx.Response:
        transport = httpx.ASGITransport(self.app, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://registry") as client:
            return await client.get("/subjects", auth=(name, password))


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    monkeypatch.setattr(passwords, "N", 2)
    return Api(monkeypatch)


async def test_an_address_that_guesses_is_told_to_wait_and_others_are_served(api: Api) -> None:
    assert (await api.get("right")).status_code == 200
    codes = [(await api.get(f"wrong-{number}")).status_code for number in range(WRONG_MAX)]
    assert codes == [401] * WRONG_MAX
    for password in ("wrong", "right"):
        refused = await api.get(password)
        assert (refused.status_code, refused.json()["error_code"]) == (429, 429), "which password is right is not said"
        assert 0 < int(refused.headers["retry-after"]) <= 60
    assert len(api.checked) == 1 + WRONG_MAX
    assert (await api.get("right", address="10.0.0.2")).status_code == 200


async def test_a_wrong_login_that_a_program_repeats_costs_one_check_and_makes_nobody_wait(api: Api) -> None:
    """A program with an old password would otherwise shut out all others of its address."""
    assert {(await api.get("old")).status_code for _ in range(5 * WRONG_MAX)} == {401}
    assert api.checked == ["old"]
    assert (await api.get("right")).status_code == 200


async def test_a_client_that_begins_with_many_requests_is_checked_once(api: Api) -> None:
    answers = await asyncio.gather(*(api.get("right") for _ in range(5 * WRONG_MAX)))
    assert {answer.status_code for answer in answers} == {200} and api.checked == ["right"]
    assert (await api.get("right")).status_code == 200 and api.checked == ["right"]


async def test_wrong_passwords_at_the_same_time_are_counted_too(api: Api) -> None:
    answers = await asyncio.gather(*(api.get(f"wrong-{number}") for number in range(WRONG_MAX + 5)))
    assert sorted(answer.status_code for answer in answers) == [401] * WRONG_MAX + [429] * 5


async def test_a_limited_number_of_wrong_logins_is_remembered(api: Api) -> None:
    for number in range(REMEMBERED_MAX + 5):
        assert await api.users.role(f"name-{number}", "x", address=f"10.1.{number // 250}.{number % 250}") is None
    assert len(api.users._wrong) == REMEMBERED_MAX


async def test_a_name_and_a_password_are_not_taken_for_others_with_the_same_text(api: Api) -> None:
    assert (await api.get("right")).status_code == 200
    assert (await api.get("ceright", name="ali")).status_code == 401
