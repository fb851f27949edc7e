r"""The format strings of `consume -f`: kcat's tokens, with Ottla's extensions in braces after a token.

    %t topic   %p partition   %o offset   %T timestamp in ms   %i number of the record, from 1   %% percent
    %k key   %K its size   %s value   %S its size   %R its size as four bytes, big-endian; the size of null is -1
    %h headers as name=value,..., null as NULL   %H number of headers   %y timestamp type: create or append

    %T{iso}  2026-01-31T12:00:00.123Z    %T{local}  the same in local time    %T{s}  decimal seconds    %T{%H:%M}  strftime, local
    %k{hex}  %s{json}  ...               a format other than --key-format and --value-format
    %s{.customer.id}  %k{.id}            a path into a JSON value
    %h{trace}                            the last header with that name

    \n \t \r \0 \\ \xNN \uNNNN           as in C;    %{ %}  literal braces after a token

A format string is compiled once to a function over many records; see `compiled`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import count
from struct import Struct
from typing import Any, NamedTuple

from ottla.client.consumer.record import ConsumerRecord
from ottla.client.values.json_path import decoder, parse_path
from ottla.client.values.value_formats import TEXT, VALUE_FORMATS, ValueFormat, printed_value

Render = Callable[[Sequence[ConsumerRecord]], bytes]
TOKENS = "tpoTikKsSRhHy%{}"
#: Tokens that accept braces.
BRACED = "Tksh"
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\", "a": b"\a", "b": b"\b", "f": b"\f", "v": b"\v", "e": b"\x1b"}
_ESCAPE = re.compile(r"\\(?:x(?P<hex>[0-9a-fA-F]{1,2})|u(?P<unicode>[0-9a-fA-F]{4})|(?P<other>.)|$)", re.DOTALL)
_SIZE = Struct(">i")
#: Control characters that a terminal acts on, except tab and newline.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class FormatError(ValueError):
    """The format string has an unknown token or argument."""


class Token(NamedTuple):
    """A token and its argument in braces."""

    name: str
    argument: str | None = None


Part = bytes | Token


class FieldFormats(NamedTuple):
    """The formats of keys, values and nulls."""

    key: ValueFormat = TEXT
    value: ValueFormat = TEXT
    #: Printed for null.
    null: bytes = b""
    #: Escape control characters, for output to a terminal.
    terminal_safe: bool = False


def unescaped(text: str) -> bytes:
    """The bytes of a text with C escapes; a backslash before any other character is kept."""

    def one(found: re.Match[str]) -> bytes:
        if found["hex"] is not None:
            return bytes([int(found["hex"], 16)])
        if found["unicode"] is not None:
            return chr(int(found["unicode"], 16)).encode(errors="replace")
        return _ESCAPES.get(found["other"] or "\\", found[0].encode())

    made, at = bytearray(), 0
    for found in _ESCAPE.finditer(text):
        made += text[at : found.start()].encode() + one(found)
        at = found.end()
    return bytes(made + text[at:].encode())


def parsed(form: str) -> list[Part]:
    """Tokens and the literals between them. Raises: FormatError."""
    parts: list[Part] = []
    literal = ""
    at = 0
    while at < len(form):
        if form[at] != "%":
            end = form.find("%", at)
            end = len(form) if end < 0 else end
            literal += form[at:end]
            at = end
            continue
        name = form[at + 1 : at + 2]
        at += 2
        if not name or name not in TOKENS:
            raise FormatError(f"unknown token %{name}; known are {' '.join('%' + known for known in TOKENS)}")
        if name in "%{}":
            literal += name
            continue
        argument = None
        if name in BRACED and form[at : at + 1] == "{":
            end = form.find("}", at)
            if end < 0:
                raise FormatError(f"%{name}{{ has no closing brace; a literal brace after a token is written %{{")
            argument, at = form[at + 1 : end], end + 1
        if literal:
            parts.append(unescaped(literal))
            literal = ""
        parts.append(Token(name, argument))
    if literal:
        parts.append(unescaped(literal))
    return parts


def compiled(parts: Sequence[Part], formats: FieldFormats = FieldFormats()) -> Render:
    r"""A function that formats records, compiled from generated source such as this, for "%p %s\n":

        def render(records):
            return b"".join([b"%d %b\n" % (r.partition, n0 if r.value is None else r.value) for r in records])

    Raises: FormatError.
    """
    source = _Source(formats)
    for part in parts:
        source.add(part)
    return source.function()


class _Source:
    """Generated source of a render function, and the names it uses."""

    def __init__(self, formats: FieldFormats) -> None:
        self._formats = formats
        self._template = ""
        self._arguments: list[str] = []
        self._names: dict[str, Any] = {"null": formats.null}
        self._json = {"key": decoder(), "value": decoder()}

    def add(self, part: Part) -> None:
        """Adds a part. Raises: FormatError."""
        if isinstance(part, bytes):
            self._template += _quoted(part.replace(b"%", b"%%"))
            return
        form, expression = self._expression(part)
        self._template += form
        self._arguments.append(expression)

    def function(self) -> Render:
        if len(self._arguments) == 1 and self._template.startswith("%b"):
            # join is twice as fast as a template.
            end = self._template[2:].replace("%%", "%")
            body = f"b'{end}'.join([{self._arguments[0]} for r in records]) + (b'{end}' if records else b'')"
        elif self._arguments:
            body = f"b''.join([b'{self._template}' % ({', '.join(self._arguments)},) for r in records])"
        else:
            body = f"b'{self._template.replace('%%', '%')}' * len(records)"
        exec(f"def render(records):\n    return {body}", self._names)
        render: Render = self._names["render"]
        return render

    def _called(self, function: Callable[..., Any]) -> str:
        name = f"f{len(self._names)}"
        self._names[name] = function
        return name

    def _expression(self, token: Token) -> tuple[str, str]:
        match token.name:
            case "t":
                return "%b", "r.topic.encode()"
            case "p" | "o" | "T" if token.argument is None:
                return "%d", {"p": "r.partition", "o": "r.offset", "T": "r.timestamp"}[token.name]
            case "T":
                return "%b", f"{self._called(timestamp_format(token.argument or ''))}(r.timestamp)"
            case "i":
                return "%d", f"{self._called(count(1).__next__)}()"
            case "y":
                return "%b", "(b'append' if r.timestamp_type else b'create')"
            case "K" | "S":
                field = {"K": "r.key", "S": "r.value"}[token.name]
                return "%d", f"(-1 if {field} is None else len({field}))"
            case "R":
                return "%b", f"{self._called(_SIZE.pack)}(-1 if r.value is None else len(r.value))"
            case "H":
                return "%d", "len(r.headers)"
            case "h":
                return "%b", f"{self._called(self._headers(token.argument))}(r.headers)"
            case "k" | "s":
                return "%b", self._field("key" if token.name == "k" else "value", token.argument)
        raise AssertionError("every token has a case")

    def _field(self, field: str, argument: str | None) -> str:
        form = self._formats.key if field == "key" else self._formats.value
        show: Callable[[bytes], bytes] | None = form.show
        if argument is not None and argument[:1] in (".", "["):
            return f"{self._called(self._at_path(field, argument))}(r.{field})"
        if argument is not None:
            if argument not in VALUE_FORMATS:
                raise FormatError(f"{{{argument}}}: known are {', '.join(VALUE_FORMATS)} and paths such as .customer.id")
            form = VALUE_FORMATS[argument]
            show = form.show
        if form is TEXT:
            show = terminal_safe if self._formats.terminal_safe else None
        elif self._formats.terminal_safe:
            inner = form.show

            def show(data: bytes) -> bytes:
                return terminal_safe(inner(data))

        if show is not None:
            return f"(null if r.{field} is None else {self._called(show)}(r.{field}))"
        return f"(r.{field} or b'')" if not self._formats.null else f"(null if r.{field} is None else r.{field})"

    def _at_path(self, field: str, text: str) -> Callable[[bytes | None], bytes]:
        try:
            path = parse_path(text)
        except ValueError as error:
            raise FormatError(str(error)) from None
        decoded, one, null = self._json[field], path.one, self._formats.null
        clean = terminal_safe if self._formats.terminal_safe else bytes

        def at(data: bytes | None) -> bytes:
            value = one(decoded(data))
            return null if value is None else clean(printed_value(value))

        return at

    def _headers(self, name: str | None) -> Callable[[Any], bytes]:
        null = self._formats.null
        clean = terminal_safe if self._formats.terminal_safe else bytes
        if name is None:
            # As in kcat, NULL by default: a null header differs from an empty one.
            none = null or b"NULL"
            return lambda headers: clean(b",".join([one.encode() + b"=" + (none if value is None else value) for one, value in headers]))

        def last(headers: Any) -> bytes:
            for one, value in reversed(headers):
                if one == name:
                    return null if value is None else clean(value)
            return null

        return last


def _quoted(literal: bytes) -> str:
    """The inside of a bytes literal in single quotes."""
    return "".join(f"\\x{byte:02x}" if byte in b"'\\\"" or not 32 <= byte < 127 else chr(byte) for byte in literal)


def timestamp_format(kind: str) -> Callable[[int], bytes]:
    """A function that formats a timestamp. Negative timestamps and those outside the calendar are printed as numbers."""

    def written(ms: int) -> bytes:
        if ms < 0:
            return b"%d" % ms
        try:
            return text(ms).encode()
        except (OverflowError, ValueError, OSError):
            return b"%d" % ms

    if kind == "iso":
        text: Callable[[int], str] = iso_time
    elif kind == "local":
        text = lambda ms: datetime.fromtimestamp(ms / 1000).astimezone().isoformat(timespec="milliseconds")  # noqa: E731
    elif kind == "s":
        text = lambda ms: f"{ms // 1000}.{ms % 1000:03d}"  # noqa: E731
    elif "%" in kind:
        text = lambda ms: datetime.fromtimestamp(ms / 1000).astimezone().strftime(kind)  # noqa: E731
    else:
        raise FormatError(f"%T{{{kind}}}: known are iso, local, s, and formats of strftime such as %H:%M:%S")
    return written


def iso_time(ms: int) -> str:
    """ISO 8601 in UTC."""
    return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{ms % 1000:03d}Z"


def terminal_safe(data: bytes) -> bytes:
    """Text that is safe on a terminal: control characters and bytes that are not UTF-8 become \\xNN."""
    text = data.decode(errors="backslashreplace")
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text).encode()
