"""Limits of password checks: by address, by name, and of checks at once."""

import asyncio
import threading

import pytest

from ottla.base import passwords
from ottla.base.passwords import hashed
from ottla.net.password_check import (
    CHECKS_MAX,
    KEYS_MAX,
    NAME_WRONG_MAX,
    WAIT_S,
    WAITING_MAX,
    WRONG_MAX,
    PasswordCheck,
    TooManyAttempts,
    WrongCounts,
)


class Guesses:
    """A check at a time that the test sets, of a user whose password is right."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.check = PasswordCheck(lambda: self.now_s)
        self.stored = hashed("right", b"salt")

    async def try_password(self, password: str, *, address: str = "10.0.0.1", name: str = "alice") -> bool:
        return await self.check.is_correct(password, self.stored, address=address, name=name)

    async def is_refused(self, *, address: str = "10.0.0.1", name: str = "alice") -> bool:
        """Whether even the right password is refused."""
        try:
            assert await self.try_password("right", address=address, name=name)
        except TooManyAttempts:
            return True
        return False


@pytest.fixture
def guesses(monkeypatch: pytest.MonkeyPatch) -> Guesses:
    monkeypatch.setattr(passwords, "N", 2)
    return Guesses()


async def test_an_address_waits_a_minute_after_ten_wrong_passwords_and_others_do_not(guesses: Guesses) -> None:
    for number in range(WRONG_MAX):
        assert not await guesses.try_password("wrong", name=f"user-{number}")
    guesses.now_s += 20
    with pytest.raises(TooManyAttempts) as refused:
        await guesses.try_password("right")
    assert refused.value.wait_s == WAIT_S - 20
    assert not await guesses.is_refused(address="10.0.0.2")
    guesses.now_s += 40
    assert not await guesses.is_refused()


async def test_a_right_password_does_not_make_good_for_the_wrong_ones_before(guesses: Guesses) -> None:
    """A user with a login of his own could guess the password of another one without an end."""
    for _ in range(WRONG_MAX):
        assert not await guesses.try_password("wrong", name="admin")
        if not await guesses.is_refused(name="viewer"):
            continue
    assert await guesses.is_refused(name="viewer")


async def test_a_name_that_many_addresses_guess_leaves_each_one_wrong_password(guesses: Guesses) -> None:
    for number in range(NAME_WRONG_MAX):
        assert not await guesses.try_password("wrong", address=f"10.1.{number}.1")
    assert await guesses.is_refused(address="10.1.0.1")
    assert not await guesses.is_refused(address="10.1.0.1", name="bob"), "the address has one wrong password only"
    assert not await guesses.is_refused(address="10.0.0.2"), "nobody locks a user out of his own address"
    assert not await guesses.try_password("wrong", address="10.0.0.2")
    assert await guesses.is_refused(address="10.0.0.2")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("testclient", "testclient", True),
    ],
)
async def test_the_addresses_of_one_machine_count_together(guesses: Guesses, one: str, other: str, same: bool) -> None:
    for _ in range(WRONG_MAX):
        await guesses.try_password("wrong", address=one)
    assert await guesses.is_refused(address=other) is same


async def test_few_passwords_are_checked_at_once_and_a_limited_number_waits(guesses: Guesses, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, release = threading.Lock(), threading.Event()
    at_once, most = 0, 0

    def waits(password: str, stored: str) -> bool:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        assert release.wait(30)
        with lock:
            at_once -= 1
        return False

    monkeypatch.setattr(passwords, "is_correct", waits)
    tries = [asyncio.create_task(guesses.try_password("x", address=f"10.0.1.{number}")) for number in range(CHECKS_MAX + WAITING_MAX)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyAttempts):
        await guesses.try_password("x", address="10.0.0.2")
    release.set()
    assert await asyncio.gather(*tries) == [False] * len(tries)
    assert most <= CHECKS_MAX
    assert not await guesses.try_password("x", address="10.0.0.2"), "there is room again"


def test_counts_are_kept_of_a_limited_number_of_addresses() -> None:
    counts = WrongCounts()
    for number in range(KEYS_MAX + 5):
        counts.add(f"address-{number}", 1.0)
    counts.add("address-5", 2.0)
    counts.add("one more", 2.0)
    assert (len(counts), counts.count("address-4", 2.0), counts.count("address-5", 2.0), counts.count("address-6", 2.0)) == (
        KEYS_MAX,
        0,
        2,
        0,
    )
