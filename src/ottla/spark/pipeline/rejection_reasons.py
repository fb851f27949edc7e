"""SQL for the reason of a dead letter: the field and the value that are wrong.

    does not decode    field ms: "soon" is not int          the first column with a value in the record that decodes to null
                       not json: "{\"ms\": 1"               if no single field is wrong
    breaks a rule      rule positive is broken: amount > 0 (amount = -3)       the columns in the check

Values are cut to `SHOWN_LETTERS` characters: people read reasons, headers store them, and a value may be long or private. The dead letter
holds the whole value. These expressions are in a branch of CASE, so they are evaluated for bad rows only.
"""

import re
from typing import Any

from ottla.spark.pipeline.config.decode import named_groups
from ottla.spark.pipeline.config.model import Decode

#: Characters of a value in a reason.
SHOWN_LETTERS = 64
#: Bytes of a binary value in a reason, in hexadecimal.
SHOWN_BYTES = 16
#: Variables of lambdas. Columns do not have these names.
READ, FIELD = "__read", "__field"
FORMATS_OF_BYTES = ("avro", "protobuf", "raw")


def literal(text: str) -> str:
    """Text as a SQL literal. Backslashes are doubled, since Spark reads them as escapes."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def undecodable(decode: Decode, frame: Any, raw: str) -> str:
    """SQL for the reason why the bytes in the column `raw` do not decode into the columns of `frame`."""
    if decode.format in FORMATS_OF_BYTES:
        return (
            f"concat({literal(f'the value is not {decode.format} of this schema; it begins with ')}, left(hex({raw}), {2 * SHOWN_BYTES}))"
        )
    text = f"make_valid_utf8(CAST({raw} AS STRING))"
    whole = "the value does not match the pattern: " if decode.format == "regex" else f"the value is not {decode.format}: "
    otherwise = f"concat({literal(whole)}, {_quoted(text)})"
    kinds = {name: kind for name, kind in frame.dtypes if not name.startswith("_") and re.fullmatch(r"\w+", name)}
    bound, written = _written(decode, list(kinds), text)
    fields = [
        f"struct({literal(name)} AS name, {literal(kinds[name])} AS kind, `{name}` IS NULL AS unread, {how} AS written)"
        for name, how in written.items()
    ]
    if not fields:
        return otherwise
    # Lambdas bind each value once. Otherwise the expression's text would grow with the square of the number of fields.
    nulls = f" AND {FIELD}.written NOT IN ({', '.join(map(literal, decode.nulls))})" if decode.nulls else ""
    at_fault = f"filter(array({', '.join(fields)}), {FIELD} -> {FIELD}.unread AND {FIELD}.written IS NOT NULL{nulls})"
    message = f"concat('field ', {FIELD}.name, ': ', {_quoted(f'{FIELD}.written')}, ' is not ', {FIELD}.kind)"
    messages = f"flatten(transform(array({bound}), {READ} -> transform({at_fault}, {FIELD} -> {message})))"
    return f"coalesce(get({messages}, 0), {otherwise})"


def _written(decode: Decode, names: list[str], text: str) -> tuple[str, dict[str, str]]:
    """SQL to bind to `READ`, and SQL over it for each field as text in the value; null if it is missing."""
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
            # Java's group names cannot contain an underscore, so groups are numbered.
            pattern = literal(re.sub(r"(?<!\\)\(\?P?<(?=[A-Za-z_])[^>]*>", "(", decode.pattern))
            return (
                f"CASE WHEN {text} RLIKE {pattern} THEN {text} END",
                {name: f"regexp_extract({READ}, {pattern}, {groups[name]})" for name in names if name in groups},
            )
    return text, {}


def broken(message: str, check: str, frame: Any) -> str:
    """SQL for a message about a broken check, with the values of the columns in the check."""
    words = set(re.findall(r"\w+", re.sub(r"'(?:[^'\\]|\\.)*'", "", check)))
    named = [name for name, kind in frame.dtypes if name in words and kind != "binary"]
    if not named:
        return literal(message)
    values = [f"concat({literal(f'{name} = ')}, coalesce({_cut(f'make_valid_utf8(CAST(`{name}` AS STRING))')}, 'null'))" for name in named]
    return f"concat({literal(f'{message} (')}, concat_ws(', ', {', '.join(values)}), ')')"


def _quoted(text: str) -> str:
    return f"concat('\"', {_cut(text)}, '\"')"


def _cut(text: str) -> str:
    return f"CASE WHEN length({text}) > {SHOWN_LETTERS} THEN concat(left({text}, {SHOWN_LETTERS}), '...') ELSE {text} END"
