"""SQL that names what is wrong with a bad row: the field and the value, for the reason of a dead letter.

    does not decode    field ms: "soon" is not int          the first field, in the order of the columns, that has a value and reads as null
                       not json: "{\"ms\": 1"               where no field alone is at fault
    breaks a rule      rule positive is broken: amount > 0 (amount = -3)       the columns that the check names

Values are text of at most `SHOWN_LETTERS` letters: a reason is read by people and kept in headers, and a value may be long or private. The
whole value is in the dead letter itself. Only bad rows pay for these expressions: they stand in a branch of CASE.
"""

import re
from typing import Any

from ottla.spark.pipeline.config.decode import named_groups
from ottla.spark.pipeline.config.model import Decode
from ottla.spark.pipeline.literals import literal

#: Letters of a value that a reason shows.
SHOWN_LETTERS = 64
#: Bytes of a value that is no text, in hexadecimal digits.
SHOWN_BYTES = 16
#: Variables of lambdas, which no column is called.
READ, FIELD = "__read", "__field"
FORMATS_OF_BYTES = ("avro", "protobuf", "raw")


def undecodable(decode: Decode, frame: Any, raw: str) -> str:
    """SQL for why the value in the column `raw`, bytes, does not decode into the columns of `frame`."""
    if decode.format in FORMATS_OF_BYTES:
        return (
            f"concat({literal(f'the value is not {decode.format} of this schema; it begins with ')}, left(hex({raw}), {2 * SHOWN_BYTES}))"
        )
    text = f"make_valid_utf8(CAST({raw} AS STRING))"
    whole = "the value does not match the pattern: " if decode.format == "regex" else f"the value is not {decode.format}: "
    otherwise = f"concat({literal(whole)}, {_shown(text)})"
    kinds = {name: kind for name, kind in frame.dtypes if not name.startswith("_") and re.fullmatch(r"\w+", name)}
    bound, written = _written(decode, list(kinds), text)
    fields = [
        f"struct({literal(name)} AS name, {literal(kinds[name])} AS kind, `{name}` IS NULL AS unread, {how} AS written)"
        for name, how in written.items()
    ]
    if not fields:
        return otherwise
    # Read once each by lambdas: the text of the expression does not grow with the square of the number of fields.
    nulls = f" AND {FIELD}.written NOT IN ({', '.join(map(literal, decode.nulls))})" if decode.nulls else ""
    at_fault = f"filter(array({', '.join(fields)}), {FIELD} -> {FIELD}.unread AND {FIELD}.written IS NOT NULL{nulls})"
    said = f"concat('field ', {FIELD}.name, ': ', {_shown(f'{FIELD}.written')}, ' is not ', {FIELD}.kind)"
    found = f"flatten(transform(array({bound}), {READ} -> transform({at_fault}, {FIELD} -> {said})))"
    return f"coalesce(get({found}, 0), {otherwise})"


def _written(decode: Decode, names: list[str], text: str) -> tuple[str, dict[str, str]]:
    """SQL to be bound to `READ`; and over it SQL for each field as it stands in the value, as text, null where it is not there."""
    match decode.format:
        case "json":
            return text, {name: f"get_json_object({READ}, {literal(f'$.{name}')})" for name in names}
        case "csv":
            columns = literal(", ".join(f"`{name}` STRING" for name in names))
            return (
                f"from_csv({text}, {columns}, map('mode', 'PERMISSIVE', 'sep', {literal(decode.separator)}))",
                {name: f"{READ}.`{name}`" for name in names},
            )
        case "regex":
            assert decode.pattern is not None, "checked with the file"
            groups = named_groups(decode.pattern)
            # Java's group names allow no underscore, so groups go by number.
            pattern = literal(re.sub(r"(?<!\\)\(\?P?<(?=[A-Za-z_])[^>]*>", "(", decode.pattern))
            return (
                f"CASE WHEN {text} RLIKE {pattern} THEN {text} END",
                {name: f"regexp_extract({READ}, {pattern}, {groups[name]})" for name in names if name in groups},
            )
    return text, {}


def broken(said: str, check: str, frame: Any) -> str:
    """SQL for the sentence `said` about a check, with the values of the columns that the check names."""
    words = set(re.findall(r"\w+", re.sub(r"'(?:[^'\\]|\\.)*'", "", check)))
    named = [name for name, kind in frame.dtypes if name in words and kind != "binary"]
    if not named:
        return literal(said)
    values = [f"concat({literal(f'{name} = ')}, coalesce({_cut(f'make_valid_utf8(CAST(`{name}` AS STRING))')}, 'null'))" for name in named]
    return f"concat({literal(f'{said} (')}, concat_ws(', ', {', '.join(values)}), ')')"


def _shown(text: str) -> str:
    return f"concat('\"', {_cut(text)}, '\"')"


def _cut(text: str) -> str:
    return f"CASE WHEN length({text}) > {SHOWN_LETTERS} THEN concat(left({text}, {SHOWN_LETTERS}), '...') ELSE {text} END"
