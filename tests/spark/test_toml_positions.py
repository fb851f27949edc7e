"""Positions of keys in a TOML text, also in unusual syntax."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.spark.pipeline.config.toml_positions import KeyPositions

HARD = '''# [source]
name = "x # no comment"
a.b = 1 # sql = 2
"quoted key" = 'v'
"sql.shuffle.partitions" = 3

[[source]] # first
name = "one"
sql = """
SELECT "[[sink]]", \\
   x
FROM y"""
  [source.decode]
  fields = { at = "int", deep = { type = "timestamp", format = "x" } }

[[source]]
topics = [
  "a", # comment ]
  "b]",
  { c = 1, d = """x
y""" },
]
[[source.inner]]
k = 1
[[source.inner]]
k = 2
[ sink . "my sink" ]
sql = \'\'\'

a\'\'\'\'
next = 1
[decode.fields]
a = "int"
[decode]
format = 1979-05-27 07:32:00
'''


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("name", 2),
        ("a.b", 3),
        ("a", 3),
        ("quoted key", 4),
        ("sql.shuffle.partitions", 5),
        ("source[0]", 7),
        ("source[0].name", 8),
        ("source[0].sql", 9),
        ("source[0].decode", 13),
        ("source[0].decode.fields.deep.format", 14),
        ("source[1]", 16),
        ("source[1].topics[1]", 19),
        ("source[1].topics[2].d", 20),
        ("source[1].inner[1].k", 26),
        ("sink.my sink.sql", 28),
        ("sink.my sink.next", 31),
        ("decode.fields.a", 33),
        ("decode.format", 35),
    ],
)
def test_every_key_has_its_line(key: str, line: int) -> None:
    tomllib.loads(HARD)
    place = KeyPositions(HARD).find(key)
    assert place is not None
    assert place.line == line


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("source[0].watermark.delay", 7),
        ("source[1].name", 16),
        ("source[1].inner[0].z", 23),
        ("decode.pattern", 34),
        ("sink.my sink.x", 27),
    ],
)
def test_a_missing_key_has_the_line_of_its_table(key: str, line: int) -> None:
    place = KeyPositions(HARD).find(key)
    assert place is not None
    assert place.line == line


def test_a_key_of_a_missing_table_has_no_line() -> None:
    assert KeyPositions(HARD).find("steps[0].name") is None


def test_each_line_of_a_multi_line_text_is_known() -> None:
    sql = tomllib.loads(HARD)["source"][0]["sql"]
    place = KeyPositions(HARD).find("source[0].sql")
    assert place is not None
    assert [place.line_at(sql.index(word)) for word in ("SELECT", "x", "FROM")] == [10, 11, 12]
    as_it_is = 'sql = "SELECT a,\\n b"\n'
    place = KeyPositions(as_it_is).find("sql")
    assert place is not None
    assert place.line_at(len(tomllib.loads(as_it_is)["sql"]) - 1) == 1


def test_windows_line_ends_count_once() -> None:
    text = 'a = 1\r\nsql = """\r\nSELECT\r\n b"""\r\nlast = 2\r\n'
    value = tomllib.loads(text)["sql"]
    places = KeyPositions(text)
    sql, last = places.find("sql"), places.find("last")
    assert sql is not None
    assert last is not None
    assert (sql.line_at(value.index("b")), last.line) == (4, 5)


TEXTS = st.text(alphabet="ab'\"\\#[]{}=.,\n é", max_size=12)


def _written(value: str) -> str:
    """A TOML string for `value`, multi-line if it contains line ends."""
    as_it_is = "".join(f"\\u{ord(letter):04x}" if letter in '"\\' else letter for letter in value)
    return f'"""\n{as_it_is}"""' if "\n" in value else f'"{as_it_is}"'


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=5))
def test_keys_after_any_text_keep_their_lines(pairs: list[tuple[str, str]]) -> None:
    lines: list[str] = []
    expected = {}
    for number, (one, two) in enumerate(pairs):
        expected[f"t[{number}]"] = len(lines) + 1
        lines.append("[[t]] # [[t]]")
        for name, value in (("one", one), ("two", two)):
            expected[f"t[{number}].{name}"] = len(lines) + 1
            lines += f"{name} = [{_written(value)}] # {name} = 1".split("\n")
    text = "\n".join(lines)
    tomllib.loads(text)
    places = KeyPositions(text)
    for key, line in expected.items():
        place = places.find(key)
        assert place is not None
        assert place.line == line
