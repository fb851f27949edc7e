"""The registry's state and decisions, without a broker: requests in, records out, and the state that a replay of them gives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ottla.registry.decisions import Candidate, Decisions, RegistryChange, SchemaRequest
from ottla.registry.errors import RegistryError
from ottla.registry.records import AVRO, JSON, Record, Reference, SchemaRecord, clear_subject_record
from ottla.registry.schemas import Schemas
from ottla.registry.state import RegistryState
from ottla.registry.subjects import parse_subject, qualified_beside


class Registry:
    """A registry without a topic: records are replayed at once."""

    def __init__(self) -> None:
        self.state = RegistryState()
        self.decisions = Decisions(self.state, Schemas(self.state))
        self.log: list[Record] = []

    def apply(self, change: RegistryChange) -> Any:
        for key, value in change.records:
            assert self.state.replay(key, value) is None
        self.log += change.records
        return change.response

    def register(self, subject: str, schema: Any, *references: Reference, kind: str = AVRO, **further: Any) -> SchemaRecord:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        request = SchemaRequest(text, kind, list(references), **further)
        found = self.decisions.registration(subject, request, normalize=False, force=False)
        if isinstance(found, Candidate):
            reasons = found.reasons()
            if reasons:
                raise RegistryError(409, str(reasons))
            found = self.apply(self.decisions.register(found))
        assert isinstance(found, SchemaRecord)
        return found

    def place(self, subject: str, schema: Any, *references: Reference, **further: Any) -> tuple[int, int]:
        made = self.register(subject, schema, *references, **further)
        return made.version, made.id


@pytest.fixture
def registry() -> Registry:
    return Registry()


@contextmanager
def refused(code: int) -> Iterator[None]:
    """The block fails with this code."""
    with pytest.raises(RegistryError) as error:
        yield
    assert error.value.code == code, error.value


def test_equal_schemas_share_an_id_and_new_ones_count_up(registry: Registry) -> None:
    assert registry.place("a", "int") == (1, 1)
    assert registry.place("a", ' "int" ') == (1, 1)
    assert registry.place("b", '{"type": "int"}') == (1, 1)
    assert registry.place("b", "long") == (2, 2)
    assert [one.version for one in registry.state.versions("b")] == [1, 2]
    assert [one.subject for one in registry.state.places_of_id(1, ".", deleted=False)] == ["a", "b"]


def test_records_have_confluents_form(registry: Registry) -> None:
    registry.register("a", "int")
    registry.register("s", {"type": "string"}, kind=JSON)
    registry.apply(registry.decisions.set_config("a", {"compatibility": "full"}))
    registry.apply(registry.decisions.set_config(None, {"compatibility": "NONE"}))
    registry.apply(registry.decisions.set_mode("a", "READONLY", force=False))
    registry.apply(registry.decisions.delete_subject("s", permanent=False))
    assert registry.log == [
        (
            b'{"keytype":"SCHEMA","subject":"a","version":1,"magic":1}',
            b'{"subject":"a","version":1,"id":1,"schema":"\\"int\\"","deleted":false}',
        ),
        (
            b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}',
            b'{"subject":"s","version":1,"id":2,"schemaType":"JSON","schema":"{\\"type\\":\\"string\\"}","deleted":false}',
        ),
        (b'{"keytype":"CONFIG","subject":"a","magic":0}', b'{"subject":"a","compatibilityLevel":"FULL"}'),
        (b'{"keytype":"CONFIG","magic":0}', b'{"compatibilityLevel":"NONE"}'),
        (b'{"keytype":"MODE","subject":"a","magic":0}', b'{"subject":"a","mode":"READONLY"}'),
        (b'{"keytype":"DELETE_SUBJECT","subject":"s","magic":0}', b'{"subject":"s","version":1}'),
    ]


def test_records_of_other_registries_are_replayed() -> None:
    """With fields that are not known here, null subjects as older versions write them, and values that are no records."""
    state = RegistryState()
    given = [
        ('{"keytype":"NOOP","magic":0}', None),
        (
            '{"keytype":"SCHEMA","subject":"a","version":3,"magic":1}',
            '{"subject":"a","version":3,"id":7,"md5":"x","schema":"\\"int\\"","deleted":false,"ts":1,"metadata":{"properties":{"k":"v"}}}',
        ),
        ('{"keytype":"CONFIG","subject":null,"magic":0}', '{"subject":null,"compatibilityLevel":"FORWARD","alias":null}'),
        ('{"keytype":"MODE","subject":null,"magic":0}', '{"subject":null,"mode":"READWRITE"}'),
        ('{"keytype":"CONTEXT","tenant":"default","context":".c","magic":0}', '{"tenant":"default","context":".c"}'),
    ]
    for name, value in given:
        assert state.replay(name.encode(), None if value is None else value.encode()) is None
    found = state.latest("a")
    assert found is not None and (found.id, found.metadata) == (7, {"properties": {"k": "v"}})
    assert (state.config("a")["compatibilityLevel"], state.contexts, state.largest_id) == ("FORWARD", {".c"}, {".": 7})
    for key in (b"nope", b'{"keytype":"NEW"}', b'{"keytype":"SCHEMA","subject":"a","version":0}'):
        assert state.replay(key, b"{}") is not None
    assert state.replay(None, b"") is not None


def test_two_instances_that_write_the_same_id_do_not_both_count(registry: Registry) -> None:
    registry.register("a", "int")
    key = b'{"keytype":"SCHEMA","subject":"b","version":1,"magic":1}'
    ignored = registry.state.replay(key, b'{"subject":"b","version":1,"id":1,"schema":"\\"long\\"","deleted":false}')
    assert ignored is not None and "the first record counts" in ignored
    assert registry.state.latest("b") is None


def test_soft_and_hard_deletes(registry: Registry) -> None:
    state, decisions = registry.state, registry.decisions
    registry.apply(decisions.set_config("a", {"compatibility": "NONE"}))
    for schema in ("int", "long", "string"):
        registry.register("a", schema)
    with refused(40407):
        decisions.delete_version("a", 1, permanent=True)
    assert registry.apply(decisions.delete_version("a", 1, permanent=False)) == 1
    with refused(40406):
        decisions.delete_version("a", 1, permanent=False)
    # An id of a soft-deleted version still resolves.
    assert state.by_id(1) is not None and [one.version for one in state.versions("a")] == [2, 3]
    assert registry.apply(decisions.delete_version("a", -1, permanent=False)) == 3
    assert registry.apply(decisions.delete_version("a", 1, permanent=True)) == 1
    assert state.by_id(1) is None
    with refused(40405):
        decisions.delete_subject("a", permanent=True)
    assert registry.apply(decisions.delete_subject("a", permanent=False)) == [2]
    with refused(40404):
        decisions.delete_subject("a", permanent=False)
    assert registry.apply(decisions.delete_subject("a", permanent=True)) == [2, 3]
    with refused(40401):
        decisions.delete_subject("a", permanent=False)
    assert "a" not in state.configs, "settings of a subject go with it"
    assert registry.place("a", "boolean") == (1, 4), "ids are not given again"


def test_a_deleted_schema_that_is_registered_again_keeps_its_id(registry: Registry) -> None:
    registry.register("a", "int")
    registry.apply(registry.decisions.delete_subject("a", permanent=False))
    assert registry.place("a", "int") == (2, 1)
    assert [one.version for one in registry.state.versions("a", deleted=True)] == [2], "the old version is replaced"


def test_references_are_resolved_and_kept(registry: Registry) -> None:
    address = {"type": "record", "name": "Address", "namespace": "shop", "fields": [{"name": "street", "type": "string"}]}
    order = {"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "to", "type": "Address"}]}
    with refused(42201):
        registry.register("order", order)
    registry.register("address", address)
    registry.register("order", order, Reference("shop.Address", "address", 1))
    assert [one.subject for one in registry.state.referenced_by("address", 1, deleted=False)] == ["order"]
    with refused(42206):
        registry.decisions.delete_version("address", 1, permanent=False)
    with refused(42206):
        registry.decisions.delete_subject("address", permanent=False)
    with refused(42201):
        registry.register("order", order, Reference("shop.Address", "address", 2))
    # A schema that is sent with its types inside is the same one.
    inside = {**order, "fields": [{"name": "to", "type": address}]}
    found = registry.decisions.lookup("order", SchemaRequest(json.dumps(inside)), normalize=False, deleted=False)
    assert found is not None and found.version == 1


def test_contexts_have_ids_and_settings_of_their_own(registry: Registry) -> None:
    assert registry.place("a", "int") == (1, 1)
    assert registry.place(":.test:a", "long") == (1, 1)
    assert registry.place(":.test:b", "int") == (1, 2)
    state = registry.state
    assert list(state.subject_names(":*:")) == [":.test:a", ":.test:b", "a"]
    assert list(state.subject_names("")) == ["a"] and list(state.subject_names(":.test:b")) == [":.test:b"]
    found = state.by_id(1, ":.test:a"), state.by_id(1), state.by_id(2, "b"), state.by_id(2)
    assert [one and one.subject for one in found] == [":.test:a", "a", ":.test:b", None]
    registry.apply(registry.decisions.set_config(":.test:", {"compatibility": "FULL"}))
    registry.apply(registry.decisions.set_config(":.__GLOBAL:", {"compatibility": "NONE"}))
    assert [state.config(name)["compatibilityLevel"] for name in (":.test:a", "a", ":.other:a")] == ["FULL", "NONE", "NONE"]
    with refused(42211):
        registry.decisions.delete_context(".test")


@pytest.mark.parametrize(
    ("parent", "subject", "expected"), [("a", "b", "b"), (":.c:a", "b", ":.c:b"), (":.c:a", ":.d:b", ":.d:b"), ("a", ":.d:b", ":.d:b")]
)
def test_a_reference_is_of_the_same_context(parent: str, subject: str, expected: str) -> None:
    assert qualified_beside(parent, subject) == expected
    assert parse_subject(expected).text == expected


def test_modes_say_what_may_be_registered(registry: Registry) -> None:
    decisions = registry.decisions
    registry.apply(decisions.set_mode("a", "READONLY", force=False))
    with refused(42205):
        registry.register("a", "int")
    with refused(42205):
        registry.register("b", "int", id=10)
    registry.apply(decisions.set_mode("b", "import", force=False))
    with refused(42205):
        registry.register("b", "int")
    assert registry.place("b", "int", id=10, version=4) == (4, 10)
    with refused(42205):
        registry.register("b", "long", id=10, version=5)
    assert registry.place("c", "long") == (1, 11)
    with refused(42205):
        decisions.set_mode(None, "IMPORT", force=False)
    with refused(42204):
        decisions.set_mode(None, "SOMETIMES", force=False)
    registry.apply(decisions.set_mode(None, "READONLY_OVERRIDE", force=False))
    assert registry.state.mode("b") == "READONLY_OVERRIDE"
    registry.apply(decisions.delete_mode(None))
    with refused(40401):
        decisions.delete_mode("unknown")


def test_import_mode_clears_deleted_schemas(registry: Registry) -> None:
    registry.register("a", "int")
    registry.apply(registry.decisions.delete_subject("a", permanent=False))
    change = registry.decisions.set_mode(None, "IMPORT", force=False)
    assert clear_subject_record(None) in change.records
    registry.apply(change)
    assert registry.state.by_id(1) is None


def test_levels_are_those_of_the_subject_or_wider_and_transitive_ones_compare_with_all(registry: Registry) -> None:
    def record(*fields: Any) -> dict[str, Any]:
        return {"type": "record", "name": "R", "fields": [{"name": name, "type": "int", **more} for name, more in fields]}

    optional: dict[str, Any] = {"default": 0}
    registry.register("a", record(("x", {})))
    registry.register("a", record(("x", {}), ("y", optional)))
    with refused(409):
        registry.register("a", record(("x", {}), ("z", {})))
    # y without a default reads version 2, but not version 1.
    third = record(("x", {}), ("y", {}))
    registry.apply(registry.decisions.set_config("a", {"compatibility": "BACKWARD_TRANSITIVE"}))
    with refused(409):
        registry.register("a", third)
    registry.apply(registry.decisions.delete_config("a"))
    assert registry.place("a", third) == (3, 3)
    registry.apply(registry.decisions.set_config(None, {"compatibility": "FORWARD"}))
    with refused(409):
        registry.register("a", record(("w", {})))
    registry.apply(registry.decisions.set_config("a", {"compatibility": "NONE"}))
    assert registry.place("a", "string") == (4, 4)
    with refused(42203):
        registry.decisions.set_config("a", {"compatibility": "SOME"})
    with refused(422):
        registry.decisions.set_config("a", {"alias": "b"})


def test_metadata_is_inherited_and_forms_compatibility_groups(registry: Registry) -> None:
    registry.apply(registry.decisions.set_config("a", {"compatibility": "FULL", "compatibilityGroup": "major"}))
    one = registry.register("a", "int", metadata={"properties": {"major": "1"}})
    assert registry.register("a", "int").version == 1
    two = registry.register("a", "string", metadata={"properties": {"major": "2"}})
    assert (one.id, two.version) == (1, 2)
    with refused(409):
        registry.register("a", "boolean")


@pytest.mark.parametrize("subject", ["", "*", "__GLOBAL", "a\nb", ":.__GLOBAL:a"])
def test_names_that_are_no_subjects_are_refused(registry: Registry, subject: str) -> None:
    with refused(42208):
        registry.register(subject, "int")
