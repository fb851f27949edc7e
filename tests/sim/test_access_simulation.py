"""No simulated request is served to a client whose right was removed, once the removal is in the broker's image.

With a safeguard switched off, one is.
"""

from __future__ import annotations

import pytest
from access_history import AccessChecker, AccessHistory

from ottla.broker.apis import k00_produce
from ottla.broker.security.access import Permits
from ottla.broker.security.authorizer import Authorizer

pytestmark = pytest.mark.slow
#: In which a switched-off safeguard has to be missed.
SEEDS = range(6)


@pytest.mark.parametrize("seed", range(4))
def test_a_removed_right_is_not_used(seed: int) -> None:
    found = AccessHistory(seed).run()
    assert found.problems == []
    assert found.served > 20 and found.refused > 20, "clients were served and refused"


def harm(expected: str) -> AccessChecker:
    """The first history that violates the invariant."""
    for seed in SEEDS:
        found = AccessHistory(seed).run()
        if any(expected in problem for problem in found.problems):
            return found
    raise AssertionError(f"no history of {len(SEEDS)} shows: {expected}")


def test_remembering_a_decision_after_a_change_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    change = Authorizer.change

    def forgetful(self: Authorizer, *arguments: object) -> None:
        known = dict(self._known)
        change(self, *arguments)  # type: ignore[arg-type]
        self._known.update(known)

    monkeypatch.setattr(Authorizer, "change", forgetful)
    harm("may not write")


def test_serving_a_waiting_fetch_by_the_rules_of_its_arrival_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Permits, "_stale", lambda self: False)
    harm("may not read")


def test_writing_without_a_check_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(k00_produce, "_permitted", lambda node, call, topics: (topics, []))
    harm("may not write")
