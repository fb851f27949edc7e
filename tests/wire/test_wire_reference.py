"""The protocol reference is equal to the declarations."""

from __future__ import annotations

from tools.protocol_reference import protocol_reference

from ottla.wire.messages import API


def test_every_api_has_its_section_and_its_line_in_the_contents() -> None:
    text = protocol_reference()
    for key, api in API.items():
        assert f"\n## {api.name} ({key})\n" in text
        assert f"| {key} | [{api.name}](#{api.name.lower()}-{key}) |" in text


def test_a_field_is_shown_with_its_type_its_versions_and_what_is_special_about_it() -> None:
    lines = protocol_reference().splitlines()
    assert "| `transactional_id` | string | 3-13 | nullable, default null |" in lines
    assert "| · `topic_id` | uuid | 13 | ignorable |" in lines
    assert "| · · `replica_directory_id` | uuid | 17-18 | tag 0, ignorable |" in lines
    assert "| · `name` | string | 0-13 | nullable from 10 |" in lines
    # Inside of a structure that came in version 15, no field is older.
    assert "| · `replica_epoch` | int64 | 15-18 | default -1 |" in lines


def test_the_errors_are_listed_by_code() -> None:
    assert "| 6 | NOT_LEADER_OR_FOLLOWER | `NotLeaderOrFollower` | yes |" in protocol_reference()
