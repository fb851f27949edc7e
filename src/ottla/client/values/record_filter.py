"""Filters of records, as in `consume --filter`: comparisons, combined with `and`, `or`, `not` and parentheses.

    key = K-17               value ~ "time ?out"            header.level != debug         header.trace
    .amount >= 100           .items[*].sku = A1             key.customer ~ ^4             partition = 3 and offset < 1000
    not (.test = true)       key = null                     timestamp >= 2026-01-31T12:00:00

    fields       key  value  header.NAME  header["odd name"]  topic  partition  offset  timestamp
                 .path into a JSON value; value.path is the same, key.path a path into a JSON key (see `values.json_path`)
    operators    =  !=  <  <=  >  >=  ~ (contains a match of a regular expression)  !~
                 a field alone: it exists and is not null
    right side   a word, or a JSON string in double quotes, needed for blanks and parentheses

Text is compared as text. Numbers in JSON and numeric fields are compared as numbers, if the right side is a number. `null`, `true` and
`false` without quotes are the JSON values, `""` is the empty text. If a path or a repeated header has several values, one match is enough.
`!=` and `!~` are `not (... = ...)` and `not (... ~ ...)`, so they are true for a missing field. Timestamps are in milliseconds or dates.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from ottla.client.consumer.record import ConsumerRecord
from ottla.client.values.json_path import decoder, parse_prefix

Filter = Callable[[ConsumerRecord], bool]
#: From the bytes of a regular expression to an object with `search`.
Compile = Callable[[bytes], Any]
#: The values of a field: bytes of keys, values and headers; str and int fields of the record; JSON values.
Values = Callable[[ConsumerRecord], list[Any]]

_TOKEN = re.compile(
    r'\s*(?:(?P<op>!=|!~|<=|>=|=|<|>|~)|(?P<paren>[()])|(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<word>(?:\["(?:[^"\\]|\\.)*"\]|[^\s()=!<>~"])+))'
)
_ORDER: dict[str, Callable[[Any, Any], bool]] = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_OWN: dict[str, Values] = {
    "topic": lambda record: [record.topic],
    "partition": lambda record: [record.partition],
    "offset": lambda record: [record.offset],
    "timestamp": lambda record: [record.timestamp],
}
_SINGLE = ("key", "value", *_OWN)
FIELDS = "key, value, header.NAME, topic, partition, offset, timestamp, .path, key.path"


class FilterError(ValueError):
    """The filter is invalid."""


class _Token(NamedTuple):
    kind: str
    text: str


class Operand(NamedTuple):
    """The right side of a comparison."""

    text: str
    #: A number, True, False or None, if it is not quoted and is one; otherwise the text.
    value: Any

    @property
    def is_number(self) -> bool:
        """Whether it is a number."""
        return isinstance(self.value, int | float) and not isinstance(self.value, bool)


def parse_filters(texts: Iterable[str]) -> Filter | None:
    """A filter that combines all filters with `and`; None without filters. Raises: FilterError."""
    filters = [parse_filter(text) for text in texts]
    if not filters:
        return None
    if len(filters) == 1:
        return filters[0]
    return lambda record: all(one(record) for one in filters)


def parse_filter(text: str, compile: Compile = re.compile) -> Filter:
    """The filter of an expression. `compile` makes the regular expressions, and raises re.error. Raises: FilterError."""
    return _Parser(text, compile).whole()


class _Parser:
    """A recursive descent parser; `or` binds weakest, then `and`, then `not`."""

    def __init__(self, text: str, compile: Compile) -> None:
        self._text = text
        self._compile = compile
        self._tokens = list(_tokens(text))
        self._at = 0
        #: Shared, so that all comparisons decode a value once.
        self._json = {"key": decoder(), "value": decoder()}

    def whole(self) -> Filter:
        parsed = self._any_of()
        if self._at < len(self._tokens):
            raise self._error(f"unexpected {self._tokens[self._at].text!r}")
        return parsed

    def _error(self, why: str) -> FilterError:
        return FilterError(f"{self._text!r}: {why}")

    def _next(self, *kinds: str) -> _Token | None:
        """Takes the next token, if it is of one of these kinds."""
        if self._at < len(self._tokens) and self._tokens[self._at].kind in kinds:
            self._at += 1
            return self._tokens[self._at - 1]
        return None

    def _next_word(self, word: str) -> bool:
        is_it = self._at < len(self._tokens) and self._tokens[self._at] == _Token("word", word)
        self._at += is_it
        return is_it

    def _any_of(self) -> Filter:
        terms = [self._all_of()]
        while self._next_word("or"):
            terms.append(self._all_of())
        return terms[0] if len(terms) == 1 else lambda record: any(one(record) for one in terms)

    def _all_of(self) -> Filter:
        terms = [self._term()]
        while self._next_word("and"):
            terms.append(self._term())
        return terms[0] if len(terms) == 1 else lambda record: all(one(record) for one in terms)

    def _term(self) -> Filter:
        if self._next_word("not"):
            inner = self._term()
            return lambda record: not inner(record)
        paren = self._next("paren")
        if paren is not None:
            if paren.text == ")":
                raise self._error("unexpected closing parenthesis")
            inner = self._any_of()
            if self._next("paren") != _Token("paren", ")"):
                raise self._error("missing closing parenthesis")
            return inner
        return self._comparison()

    def _comparison(self) -> Filter:
        left = self._next("word")
        if left is None:
            raise self._error(f"expected a field: {FIELDS}")
        values = self._field(left.text)
        op = self._next("op")
        if op is None:
            return lambda record: any(value is not None for value in values(record))
        right = self._next("word", "quoted")
        if right is None:
            raise self._error(f"missing value after {op.text}")
        fits = self._fits(left.text, op.text.removeprefix("!") if op.text != "!=" else "=", right)
        if left.text in _SINGLE:
            # Faster for fields with exactly one value.
            of, negative = attrgetter(left.text), op.text.startswith("!")
            return (lambda record: not fits(of(record))) if negative else (lambda record: fits(of(record)))
        if op.text.startswith("!"):
            return lambda record: not any(fits(value) for value in values(record))
        return lambda record: any(fits(value) for value in values(record))

    def _field(self, text: str) -> Values:
        if text in _OWN:
            return _OWN[text]
        if text == "key":
            return lambda record: [record.key]
        if text == "value":
            return lambda record: [record.value]
        field, _, name = text.partition(".")
        if text.startswith('header["') and text.endswith('"]'):
            return _header(msgspec.json.decode(text[7:-1], type=str))
        if field == "header" and name:
            return _header(name)
        field = "key" if text.startswith(("key.", "key[")) else "value"
        try:
            path, end = parse_prefix(text.removeprefix(field))
        except ValueError:
            raise self._error(f"unknown field {text!r}; fields are {FIELDS}") from None
        if end < len(text.removeprefix(field)):
            raise self._error(f"{text!r} is not a path like .customer.id or .items[0]")
        decoded, all_at = self._json[field], path.all
        if field == "key":
            return lambda record: all_at(decoded(record.key))
        return lambda record: all_at(decoded(record.value))

    def _fits(self, left: str, op: str, token: _Token) -> Callable[[Any], bool]:
        quoted = token.kind == "quoted"
        text = msgspec.json.decode(token.text, type=str) if quoted else token.text
        if op == "~":
            try:
                search = self._compile(text.encode()).search
            except re.error as error:
                raise self._error(f"{text!r} is not a regular expression: {error}") from None
            return lambda value: value is not None and search(_bytes(value)) is not None
        if left == "timestamp":
            right = Operand(text, _milliseconds(self, text))
        else:
            right = Operand(text, text if quoted else _literal(text))
        if op == "=":
            return _equal(right)
        if right.value is None or isinstance(right.value, bool):
            raise self._error(f"{op} cannot compare with {text}")
        return _ordered(_ORDER[op], right)

    def not_a_time(self, text: str) -> FilterError:
        """The error for an invalid timestamp."""
        return self._error(f"expected a timestamp in milliseconds or a date like 2026-01-31T12:00:00, not {text!r}")


def _tokens(text: str) -> Iterable[_Token]:
    at = 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None:
            raise FilterError(f"{text!r}: cannot parse {text[at:].strip()!r}")
        assert match.lastgroup is not None, "each alternative has a name"
        yield _Token(match.lastgroup, match[match.lastgroup])
        at = match.end()


def _header(name: str) -> Values:
    return lambda record: [value for one, value in record.headers if one == name]


def _literal(text: str) -> Any:
    if text in ("null", "true", "false"):
        return {"null": None, "true": True, "false": False}[text]
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return text
    return number if text.lower().lstrip("+-")[:1] not in ("n", "i") else text


def _milliseconds(parser: _Parser, text: str) -> int:
    if text.isdecimal():
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise parser.not_a_time(text) from None


def _bytes(value: Any) -> bytes:
    """The bytes that a regular expression searches."""
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def _equal(right: Operand) -> Callable[[Any], bool]:
    as_bytes, number = right.text.encode(), right.value if right.is_number else None

    def equal(value: Any) -> bool:
        if isinstance(value, bytes):
            return right.value is not None and value == as_bytes
        if isinstance(value, str):
            return right.value is not None and value == right.text
        if value is None or isinstance(value, bool):
            return value is right.value
        return number is not None and isinstance(value, int | float) and value == number

    return equal


def _ordered(order: Callable[[Any, Any], bool], right: Operand) -> Callable[[Any], bool]:
    """Compares numbers with numbers and with text that is a number, and text with text."""

    def ordered(value: Any) -> bool:
        if isinstance(value, bytes):
            try:
                value = value.decode()
            except UnicodeDecodeError:
                return False
        if isinstance(value, str) and right.is_number:
            value = _literal(value)
        if isinstance(value, str):
            return not right.is_number and order(value, right.text)
        return right.is_number and isinstance(value, int | float) and not isinstance(value, bool) and order(value, right.value)

    return ordered
