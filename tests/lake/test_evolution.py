"""What becomes of a table's columns, decided on schemas alone."""

from typing import Any

import pytest

from ottla.lake.table.schema_evolution import evolution


def schema(**columns: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns.items()]}


def names(found: dict[str, Any]) -> list[str]:
    return [field["name"] for field in found["fields"]]


def test_a_new_column_is_added_behind_those_that_are_there() -> None:
    found = evolution(schema(a="long"), schema(b="string", a="long"))
    assert names(found.schema) == ["a", "b"]
    assert [str(one) for one in found.added] == ["b string"]


def test_a_column_that_rows_do_not_have_stays() -> None:
    found = evolution(schema(a="long", b="string"), schema(a="long"))
    assert found.schema == schema(a="long", b="string") and not (found.added or found.wider or found.refused)


@pytest.mark.parametrize(
    ("there", "wanted"),
    [("long", "integer"), ("double", "long"), ("decimal(12,2)", "decimal(10,2)"), ("long", "void"), ("double", "float")],
)
def test_a_narrower_type_goes_into_the_wider_that_is_there(there: str, wanted: str) -> None:
    found = evolution(schema(a=there), schema(a=wanted))
    assert found.schema == schema(a=there) and not (found.added or found.wider or found.refused)


@pytest.mark.parametrize(("there", "wanted"), [("integer", "long"), ("long", "double"), ("decimal(10,2)", "decimal(12,2)")])
def test_a_wider_type_takes_writing_anew(there: str, wanted: str) -> None:
    found = evolution(schema(a=there), schema(a=wanted))
    assert found.schema == schema(a=wanted)
    assert [str(one) for one in found.wider] == [f"a {there}, not {wanted}"]


@pytest.mark.parametrize(("there", "wanted"), [("long", "string"), ("decimal(10,2)", "decimal(10,4)"), ("string", schema(x="long"))])
def test_another_type_is_refused_and_the_column_stays(there: str, wanted: Any) -> None:
    found = evolution(schema(a=there), schema(a=wanted))
    assert found.schema == schema(a=there)
    assert [one.column for one in found.refused] == ["a"]


def test_members_of_structs_lists_and_maps_are_columns_too() -> None:
    there = schema(s=schema(x="long"), l={"type": "array", "elementType": schema(x="long"), "containsNull": True})
    wanted = schema(s=schema(y="string"), l={"type": "array", "elementType": schema(x="string", z="long"), "containsNull": True})
    found = evolution(there, wanted)
    assert [str(one) for one in found.added] == ["s.y string", "l[].z long"]
    assert [str(one) for one in found.refused] == ["l[].x long, not string"]


def test_names_that_differ_in_capitals_only_are_refused() -> None:
    assert [one.column for one in evolution(schema(page="long"), schema(Page="long")).refused] == ["Page"]


def test_a_column_of_which_only_null_is_known_waits() -> None:
    assert evolution(schema(a="long"), schema(b="void")).added == []
