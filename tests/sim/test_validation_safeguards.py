"""Histories with schema validation, and each of its safeguards, switched off alone: the simulator finds a violation."""

from __future__ import annotations

import re

import pytest
from source_changes import change

from ottla.broker import schema_registry
from ottla.broker.apis import schema_validation
from ottla.broker.schema_registry import SchemaRegistry
from ottla.sim import history as histories
from ottla.sim.history import History
from ottla.sim.schema_registry import FIRST, LATE, NEVER, frame

#: Histories that a fault may hide in before the test gives up.
SEEDS = 30
KINDS = ("broken connections", "kill", "pause")


def history(seed: int) -> History:
    return History(seed, kinds=KINDS, compacted=False, validated=True)


def harm(expected: str) -> bool:
    """Whether a history has a violation that matches ``expected``."""
    return any(re.search(expected, problem) for seed in range(SEEDS) for problem in history(seed).run().problems)


def test_records_with_registered_schemas_are_kept_and_all_others_are_refused() -> None:
    frames = set()
    for seed in range(4):
        made = history(seed)
        assert made.run().problems == []
        assert made.machine.node is not None
        assert made.machine.node.schemas.topics == {"history"}
        frames |= {value[:5] for value in made.kept}
    assert frames == {frame(FIRST), frame(LATE)}


def test_accepting_schemas_that_are_not_registered_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, schema_validation, "_refused", "if registered is False", "if False")
    assert harm(f"schema: .*{frame(NEVER)[-1]}.* was (acknowledged|read|kept)")


def test_accepting_batches_while_the_registry_does_not_answer_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, schema_validation, "_refused", "elif None in known.values():", "elif False:")
    assert harm("schema: .* was not registered")


def test_accepting_values_without_a_schema_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, schema_validation, "_framed", "if unframed >= 0:", "if False:")
    assert harm("schema: b'plain.* was not registered")


def test_remembering_for_ever_that_a_schema_is_not_registered_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "UNKNOWN_MS", 1 << 40)
    monkeypatch.setattr(histories, "HEALED_BY_MS", 15_000)
    assert harm("producers did not finish")


def test_waiting_for_ever_for_an_answer_that_was_lost_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SchemaRegistry, "_expired", lambda self, ticket: None)
    monkeypatch.setattr(histories, "HEALED_BY_MS", 15_000)
    assert harm("producers did not finish")
