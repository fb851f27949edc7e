"""Finds the line of each key in a TOML text. The parser of the standard library reports values, not lines.

    [[source]]                                     source[0]                  line 1
    name = "visits"                                source[0].name             line 2
    decode = { format = "csv",  schema = "a INT" } source[0].decode.format    line 3
    [[step]]                                       step[0]                    line 4
    sql = '''                                      step[0].sql                line 5; its text begins on line 6
    SELECT ...'''

A missing key has the position of the table that should hold it. `tomllib` has parsed the text before, so it is valid and nothing is checked
here. All of TOML's syntax is supported: comments, the four kinds of strings, nested arrays of tables, arrays over several lines, inline
tables, dotted and quoted keys.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
SPACES = re.compile(r"[ \t]*")
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
SCALAR = re.compile(r"[^,\]}#\n]*")
ESCAPE = re.compile(r"\\(?:u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|x[0-9A-Fa-f]{2}|[ \t]*\n[ \t\n]*|.)", re.DOTALL)
LAST_PART = re.compile(r"(?:\[\d+\]|\.?[^.\[\]]*)$")


@dataclass(frozen=True, slots=True)
class KeyPosition:
    """The position of a key."""

    line: int
    #: For a text: (index in the value, line) of the first character of each line.
    breaks: tuple[tuple[int, int], ...] = ()

    def line_at(self, index: int) -> int:
        """The line of the character `index` of a text."""
        return max((line for start, line in self.breaks if start <= index), default=self.line)


@lru_cache(maxsize=16)
def key_positions(text: str) -> "KeyPositions":
    """The positions of all keys of a valid TOML text."""
    return KeyPositions(text)


class KeyPositions:
    """A scan of a text, once from its beginning to its end."""

    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n")
        self.position = 0
        #: Keys and headers as written.
        self.keys: dict[str, KeyPosition] = {}
        #: Tables that only the names of others imply, such as `decode` by `[decode.fields]`.
        self.implied: dict[str, KeyPosition] = {}
        #: How many `[[...]]` there were of each array of tables.
        self.counts: dict[str, int] = {}
        self._document()

    def find(self, key: str) -> KeyPosition | None:
        """The position of a dotted key such as ``sink[1].keys``, or of the innermost existing table around it."""
        while key:
            position = self.keys.get(key) or self.implied.get(key)
            if position is not None:
                return position
            key = LAST_PART.sub("", key)
        return None

    @property
    def line(self) -> int:
        return self.text.count("\n", 0, self.position) + 1

    def _document(self) -> None:
        prefix = ""
        while self._skip(BLANK) < len(self.text):
            if self.text[self.position] == "[":
                prefix = self._header()
            else:
                self._entry(prefix)

    def _skip(self, pattern: re.Pattern[str]) -> int:
        match = pattern.match(self.text, self.position)
        if match is not None:
            self.position = match.end()
        return self.position

    def _header(self) -> str:
        position = KeyPosition(self.line)
        of_array = self.text.startswith("[[", self.position)
        self.position += 2 if of_array else 1
        *outer, name = self._dotted()
        self.position += 2 if of_array else 1
        path = ""
        for part in outer:
            path = _joined(path, part)
            self.implied.setdefault(path, position)
            if path in self.counts:
                path = f"{path}[{self.counts[path] - 1}]"
        path = _joined(path, name)
        if of_array:
            self.keys.setdefault(path, position)
            self.counts[path] = self.counts.get(path, 0) + 1
            path = f"{path}[{self.counts[path] - 1}]"
        self.keys.setdefault(path, position)
        return f"{path}."

    def _dotted(self) -> list[str]:
        """The parts of a key; the position is behind it and the spaces after it."""
        parts = []
        while True:
            self._skip(SPACES)
            if self.text[self.position] in "\"'":
                start = self.position
                self._string()
                parts.append(_unquoted(self.text[start : self.position]))
            else:
                start = self.position
                parts.append(self.text[start : self._skip(BARE_KEY)])
            self._skip(SPACES)
            if self.text[self.position] != ".":
                return parts
            self.position += 1

    def _entry(self, prefix: str) -> None:
        position = KeyPosition(self.line)
        *outer, name = self._dotted()
        path = prefix.removesuffix(".")
        for part in outer:
            path = _joined(path, part)
            self.implied.setdefault(path, position)
        self.position += 1  # The sign between key and value.
        self._skip(SPACES)
        self._value(_joined(path, name), position.line)

    def _value(self, path: str, line: int) -> None:
        breaks: tuple[tuple[int, int], ...] = ()
        match self.text[self.position]:
            case '"' | "'":
                breaks = self._string()
            case "[":
                self._members(path, "]")
            case "{":
                self._members(path, "}")
            case _:
                self._skip(SCALAR)
        self.keys.setdefault(path, KeyPosition(line, breaks))

    def _members(self, path: str, close: str) -> None:
        """The members of an array or of an inline table."""
        self.position += 1
        index = 0
        while self.text[self._skip(BLANK)] != close:
            if close == "]":
                self._value(f"{path}[{index}]", self.line)
            else:
                self._entry(f"{path}.")
            index += 1
            if self.text[self._skip(BLANK)] == ",":
                self.position += 1
        self.position += 1

    def _string(self) -> tuple[tuple[int, int], ...]:
        """Skips a string. Returns its line breaks as in `KeyPosition.breaks`."""
        quote = self.text[self.position]
        long = self.text.startswith(quote * 3, self.position)
        delimiter = quote * 3 if long else quote
        self.position += len(delimiter)
        if long and self.text.startswith("\n", self.position):
            self.position += 1
        index, breaks = 0, [(0, self.line)]
        while not self.text.startswith(delimiter, self.position):
            letter = self.text[self.position]
            escape = ESCAPE.match(self.text, self.position) if quote == '"' and letter == "\\" else None
            if escape is None:
                self.position += 1
                index += 1
            else:
                self.position = escape.end()
                index += "\n" not in escape[0]
            if letter == "\n" or (escape is not None and "\n" in escape[0]):
                breaks.append((index, self.line))
        self.position += len(delimiter)
        # A long string may end with up to two quotes of its own.
        while long and self.text.startswith(quote, self.position):
            self.position += 1
        return tuple(breaks)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _unquoted(written: str) -> str:
    import tomllib

    names: Mapping[str, int] = tomllib.loads(f"{written} = 0")
    return next(iter(names))
