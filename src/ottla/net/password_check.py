"""Checks the passwords of HTTP clients, with limits against guessing: for the logins of the console and of the registry.

A check is a slow hash, 50 ms and 16 MiB, so ``CHECKS_MAX`` are made at once. Wrong passwords are counted, and for ``WAIT_S`` after the last
one these are refused without a check, right passwords too:

==========================================================  ======================================================
wrong passwords                                             who waits
==========================================================  ======================================================
``WRONG_MAX`` from one address                              the address
``NAME_WRONG_MAX`` of one name, from whatever addresses     for this name, an address with one wrong password
==========================================================  ======================================================

So nobody can lock a user out of an address that sent no wrong password. Of an IPv6 address the first 64 bits count, because one machine can
use all others. The counts of the addresses and names that failed longest ago are forgotten above ``KEYS_MAX``.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv6Address, IPv6Network, ip_address

from ottla.base import passwords

WRONG_MAX, NAME_WRONG_MAX, WAIT_S = 10, 100, 60.0
#: Addresses, and names. Names of more characters are cut.
KEYS_MAX, NAME_MAX = 10_000, 100
#: Checks at once, and those that wait for one. The latter take 2 s.
CHECKS_MAX, WAITING_MAX = 2, 64
#: When to come again after a refusal because too many checks wait.
BUSY_S = 2.0


class TooManyAttempts(Exception):
    """A password was not checked."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"too many attempts; try again after {wait_s:.0f} s")
        self.wait_s = wait_s


class WrongCounts:
    """Wrong passwords by address or by name."""

    def __init__(self) -> None:
        #: Number and time of the last one, by key; the last ones at the end.
        self._counts: dict[str, tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def count(self, key: str, now_s: float) -> int:
        count, last_s = self._counts.get(key, (0, now_s))
        return count if now_s - last_s < WAIT_S else 0

    def wait_s(self, key: str, now_s: float) -> float:
        """The time until the count is 0."""
        _, last_s = self._counts.get(key, (0, now_s - WAIT_S))
        return max(last_s + WAIT_S - now_s, 0.0)

    def add(self, key: str, now_s: float) -> None:
        count = self.count(key, now_s)
        self._counts.pop(key, None)
        self._counts[key] = (count + 1, now_s)
        if len(self._counts) > KEYS_MAX:
            del self._counts[next(iter(self._counts))]

    def take_back(self, key: str) -> None:
        """Removes one that was added and was none."""
        count, last_s = self._counts.get(key, (0, 0.0))
        if count > 1:
            self._counts[key] = (count - 1, last_s)
        else:
            self._counts.pop(key, None)


class PasswordCheck:
    """Checks passwords, on one event loop."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._of_addresses, self._of_names = WrongCounts(), WrongCounts()
        self._threads = ThreadPoolExecutor(CHECKS_MAX, thread_name_prefix="ottla-passwords")
        self._waiting = 0

    def refuse_guesses(self, address: str, name: str) -> None:
        """Raises: TooManyAttempts, if the address must wait."""
        address, name, now_s = _network(address), name[:NAME_MAX], self._clock_s()
        limit = 1 if self._of_names.count(name, now_s) >= NAME_WRONG_MAX else WRONG_MAX
        if self._of_addresses.count(address, now_s) >= limit:
            raise TooManyAttempts(self._of_addresses.wait_s(address, now_s))

    async def is_correct(self, password: str, stored: str, *, address: str, name: str) -> bool:
        """Whether a password has a hash of ``base/passwords.py``. Raises: TooManyAttempts."""
        self.refuse_guesses(address, name)
        if self._waiting >= CHECKS_MAX + WAITING_MAX:
            raise TooManyAttempts(BUSY_S)
        address, name = _network(address), name[:NAME_MAX]
        # Counted before it is known to be wrong: otherwise a thousand passwords at the same time would all be tried.
        self._of_addresses.add(address, self._clock_s())
        self._of_names.add(name, self._clock_s())
        self._waiting += 1
        try:
            correct = await asyncio.get_running_loop().run_in_executor(self._threads, passwords.is_correct, password, stored)
        finally:
            self._waiting -= 1
        if correct:
            # Only its own count: else a user could guess the password of another one, with a login of his own after each nine.
            self._of_addresses.take_back(address)
            self._of_names.take_back(name)
        return correct


def _network(address: str) -> str:
    """An IPv4 address, or the network of an IPv6 address."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Network((int(parsed), 64), strict=False))
