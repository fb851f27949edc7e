"""Schema evolution of a table, on schemas alone."""

from typing import Any

import pytest

from ottla.lake.table.schema_evolution import evolution


def schema(**columns: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns.items()]}


def names(found: dict[str, Any]) -> list[str]:
    return [field["name"] for field in found["fields"]]


def test_a_new_column_is_added_after_the_existing_ones() -> None:
    found = evolution(schema(a="long"), schema(b="string", a="long"))
    assert names(found.schema) == ["a", "b"]
    assert [str(one) for one in found.added] == ["b string"]


def test_a_column_missing_in_the_rows_stays() -> None:
    found = evolution(schema(a="long", b="string"), schema(a="long"))
    assert found.schema == schema(a="long", b="string") and not (found.added or found.wider or found.refused)


@pytest.mark.parametrize(
    ("existing", "requested"),
    [("long", "integer"), ("double", "long"), ("decimal(12,2)", "decimal(10,2)"), ("long", "void"), ("double", "float")],
)
def test_a_narrower_type_is_stored_in_the_wider_column(existing: str, requested: str) -> None:
    found = evolution(schema(a=existing), schema(a=requested))
    assert found.schema == schema(a=existing) and not (found.added or found.wider or found.refused)


@pytest.mark.parametrize(("existing", "requested"), [("integer", "long"), ("long", "double"), ("decimal(10,2)", "decimal(12,2)")])
def test_a_wider_type_requires_a_rewrite(existing: str, requested: str) -> None:
    found = evolution(schema(a=existing), schema(a=requested))
    assert found.schema == schema(a=requested)
    assert [str(one) for one in found.wider] == [f"a {existing}, not {requested}"]


@pytest.mark.parametrize(("existing", "requested"), [("long", "string"), ("decimal(10,2)", "decimal(10,4)"), ("string", schema(x="long"))])
def test_an_incompatible_type_is_refused_and_the_column_stays(existing: str, requested: Any) -> None:
    found = evolution(schema(a=existing), schema(a=requested))
    assert found.schema == schema(a=existing)
    assert [one.column for one in found.refused] == ["a"]


def test_fields_of_structs_lists_and_maps_evolve_too() -> None:
    existing = schema(s=schema(x="long"), l={"type": "array", "elementType": schema(x="long"), "containsNull": True})
    requested = schema(s=schema(y="string"), l={"type": "array", "elementType": schema(x="string", z="long"), "containsNull": True})
    found = evolution(existing, requested)
    assert [str(one) for one in found.added] == ["s.y string", "l[].z long"]
    assert [str(one) for one in found.refused] == ["l[].x long, not string"]


def test_names_that_differ_only_in_case_are_refused() -> None:
    assert [one.column for one in evolution(schema(page="long"), schema(Page="long")).refused] == ["Page"]


def test_a_column_with_only_nulls_is_not_added_yet() -> None:
    assert evolution(schema(a="long"), schema(b="void")).added == []
