"""`consume -f`: tokens, braces, escapes, and control characters on a terminal."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cli.common.record_format import FieldFormats, FormatError, compiled, parsed, terminal_safe, unescaped
from ottla.cli.common.record_options import parse_value_format
from ottla.client.consumer.record import ConsumerRecord


def a_record(value: bytes | None = b"v", key: bytes | None = b"k", **changes: Any) -> ConsumerRecord:
    settings: dict[str, Any] = {
        "topic": "orders", "partition": 3, "offset": 100, "timestamp": 1_700_000_000_123, "timestamp_type": 0, "key": key, "value": value,
        "headers": (("a", b"1"), ("n", None), ("a", b"2")),
    }  # fmt: skip
    return ConsumerRecord(**(settings | changes))


def printed(text: str, *records: ConsumerRecord, seen: FieldFormats = FieldFormats()) -> bytes:
    return compiled(parsed(text), seen)(records or [a_record()])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%s", b"v"),
        ("%S", b"1"),
        ("%R", b"\0\0\0\1"),
        ("%k", b"k"),
        ("%K", b"1"),
        ("%T", b"1700000000123"),
        ("%t", b"orders"),
        ("%p", b"3"),
        ("%o", b"100"),
        ("%h", b"a=1,n=NULL,a=2"),
        ("%%", b"%"),
        ("%s%%d", b"v%d"),
        (r"%k\t%s\n", b"k\tv\n"),
        (r"\x41\x5a\u00e9\0\\ \q", b"AZ\xc3\xa9\0\\ \\q"),
        ("%i", b"1"),
        ("%H", b"3"),
        ("%y", b"create"),
        ("%h{a}", b"2"),
        ("%h{absent}", b""),
        ("%T{iso}", b"2023-11-14T22:13:20.123Z"),
        ("%T{s}", b"1700000000.123"),
        ("%s{hex}", b"76"),
        ("%k{base64}", b"aw=="),
        ("%t%{x%}", b"orders{x}"),
        ("'%s' \"%k\" \\", b"'v' \"k\" \\"),
        ("no token", b"no token"),
        ("", b""),
    ],
)
def test_a_token_prints_its_field(text: str, expected: bytes) -> None:
    assert printed(text) == expected


def test_records_are_printed_one_after_the_other_and_counted() -> None:
    assert printed("%i:%s,", a_record(b"a"), a_record(b"b")) == b"1:a,2:b,"
    render = compiled(parsed("%s|"))
    assert render([]) == b""
    assert render([a_record(b"a"), a_record(b"b")]) + render([a_record(b"c")]) == b"a|b|c|"
    assert compiled(parsed("%i "))([a_record()] * 3) == b"1 2 3 "


def test_null_prints_nothing_or_a_configured_text_and_has_size_minus_one() -> None:
    gone = a_record(None, None)
    assert printed("%k/%s %K %S %R", gone) == b"/ -1 -1 \xff\xff\xff\xff"
    assert printed("%k/%s %h", gone, seen=FieldFormats(null=b"~")) == b"~/~ a=1,n=~,a=2"
    assert printed("%s", gone, seen=FieldFormats(null=b"NULL")) == b"NULL"


def test_a_path_prints_a_member_of_a_json_value() -> None:
    record = a_record(b'{"a": {"b": ["x", 2, null, {"c": 1}]}}', b'{"id": 5}')
    text = "%s{.a.b[0]} %s{.a.b[1]} %s{.a.b[3]} %k{.id} <%s{.none}> <%s{.a.b[2]}> %s{.a.b[*]}"
    assert printed(text, record) == b'x 2 {"c":1} 5 <> <> ["x",2,null,{"c":1}]'


def test_timestamps_can_have_a_format() -> None:
    from datetime import datetime

    local = datetime.fromtimestamp(1_700_000_000.123).astimezone()
    assert printed("%T{%Y/%m/%d %H:%M}") == local.strftime("%Y/%m/%d %H:%M").encode()
    assert printed("%T{local}") == local.isoformat(timespec="milliseconds").encode()
    assert printed("%T{iso}", a_record(timestamp=-1)) == b"-1"
    assert printed("%T{iso}", a_record(timestamp=2**62)) == str(2**62).encode()
    assert printed("%y", a_record(timestamp_type=1)) == b"append"


def test_formats_of_keys_and_values_apply_and_braces_override_them() -> None:
    seen = FieldFormats(key=parse_value_format("int", ""), value=parse_value_format("hex", ""))
    record = a_record(b"\x00\xff", (42).to_bytes(8, "big"))
    assert printed("%k %s %s{base64}", record, seen=seen) == b"42 00ff AP8="


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("%z", "unknown token %z"),
        ("100%", "unknown token %;"),
        ("%s{", "no closing brace"),
        ("%s{rot13}", "known are text, json"),
        ("%s{.a[}", "not a path"),
        ("%T{utc}", "known are iso, local, s"),
    ],
)
def test_an_invalid_format_is_refused(text: str, why: str) -> None:
    with pytest.raises(FormatError, match=why):
        compiled(parsed(text))


def test_control_characters_are_escaped_on_a_terminal() -> None:
    record = a_record(b"\x1b[2Jred\xff\xc2\x9b1m\ttab\nline", headers=(("h", b"\x07"),))
    shown = printed("%s %h %h{h}", record, seen=FieldFormats(terminal_safe=True))
    assert shown == b"\\x1b[2Jred\\xff\\x9b1m\ttab\nline h=\\x07 \\x07"
    assert terminal_safe("größe ✓".encode()) == "größe ✓".encode()
    assert printed("%s", record) == record.value


LITERAL = st.text(st.characters(exclude_characters="%\\{}", codec="utf-8"), max_size=20)


@given(LITERAL, LITERAL, st.binary(max_size=10), st.binary(max_size=10))
def test_text_between_tokens_and_in_records_is_printed_unchanged(before: str, after: str, key: bytes, value: bytes) -> None:
    shown = printed(f"{before}%k{after}%s{before}", a_record(value, key))
    assert shown == before.encode() + key + after.encode() + value + before.encode()


@given(st.text(max_size=20))
def test_any_text_is_a_format_or_is_refused(text: str) -> None:
    try:
        printed(text)
    except FormatError:
        return


def test_escapes_are_those_of_c() -> None:
    assert unescaped(r"a\nb\tc\x00\e[0m\\") == b"a\nb\tc\0\x1b[0m\\"
    assert unescaped("\\") == b"\\"
