"""In simulated time a client above its quota is muted and held to it, and delays no other.

With a safeguard switched off, it is not.
"""

from __future__ import annotations

import pytest
from quota_history import QuotaHistory

from ottla.broker.quotas.client_quotas import ClientQuotas
from ottla.net.server_connection import ServerConnection

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(4))
def test_quotas_are_held_and_others_are_not_delayed(seed: int) -> None:
    found = QuotaHistory(seed).run()
    assert found.problems == []
    assert found.throttled > 20 and found.polite > 100, "clients were throttled and served"


#: Histories that a fault may hide in.
SEEDS = 30


def harm(expected: str) -> None:
    """A history violates the invariant."""
    for seed in range(SEEDS):
        problems = QuotaHistory(seed).run().problems
        if any(expected in problem for problem in problems):
            return
    raise AssertionError(f"no history of {SEEDS} shows: {expected}; the last one shows {problems}")


def test_answering_without_muting_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerConnection, "mute", lambda self, duration_ms: None)
    harm("before its throttle time was over")


def test_muting_every_connection_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    mute = ServerConnection.mute

    def everyone(self: ServerConnection, duration_ms: int) -> None:
        for connection in list(self._context.connections):
            mute(connection, duration_ms)  # type: ignore[arg-type]

    monkeypatch.setattr(ServerConnection, "mute", everyone)
    harm("a request of a polite client took")


def test_counting_every_second_request_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    throttle_ms, calls = ClientQuotas._throttle_ms, [0]

    def careless(self: ClientQuotas, call: object, message: object) -> int:
        calls[0] += 1
        return throttle_ms(self, call, message) if calls[0] % 2 else 0  # type: ignore[arg-type]

    monkeypatch.setattr(ClientQuotas, "_throttle_ms", careless)
    harm("are permitted")


def test_one_quota_for_all_clients_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quota_history.GREEDY", "polite")
    harm("a polite client was throttled")
