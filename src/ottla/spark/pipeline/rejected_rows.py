"""Rejected rows: rows that do not decode or break a rule. They become dead letters, are dropped, or fail the query.

One SQL expression gives each row of an unfiltered view a verdict: first from decoding, then from the rules in the order of the file. A
check is broken if it is false or null.

    verdict   null           the row is good
              ""             dropped (`action = "drop"`)
              a sentence     a dead letter, with this reason
              raised         `action = "fail"`: the query fails with the sentence, and the next start retries the batch

Steps and sinks see the good rows only, so rejected rows are in no aggregation. The dead letters are written by

    the query of a sink, if a sink of the form append reads the view    one read of the topic and one checkpoint for both
    a separate query over the same source, if only steps read it        a checkpoint of its own

Each rejected row of each batch is written exactly once, to a Delta or Iceberg table or to a topic (with brokers that serve transactions).

When a batch is retried after a crash, its rules may have changed, or a function, or a table that a step reads. So the transaction of a
batch's dead letters holds a hash of them beside the batch number. A run with the same hash skips them; a run with another writes all of
its own too. Dead letters are written before the good rows, so each row is in the sink or among the dead letters, whatever the rules were:

    batch N is in the sink       its dead letters were written before. The sink keeps the rows (tables, append), or replaces them (Parquet)
                                 by those of the current rules, whose dead letters are already written
    batch N is not in the sink   it is written by the current rules, after its dead letters

    table    reason  rule  view  topic  partition  offset  timestamp  at (time of rejection)  key  value (both raw)  row (decoded, JSON)
    topic    raw key and value; the rest as headers, `ottla.reason`, `ottla.topic`, `ottla.offset` ...

Rows of a step have no raw record: their `value` is null in the table (and the row as JSON in a topic), and `topic`, `partition`, `offset`
and `timestamp` are set only if the step selects `_topic`, `_partition`, `_offset` and `_timestamp`.

The reason of a dead letter names the field and the value that are wrong:

    does not decode    field ms: "soon" is not int          the first column with a value in the record that decodes to null
                       not json: "{\\"ms\\": 1"               if no single field is wrong
    breaks a rule      rule positive is broken: amount > 0 (amount = -3)       the columns in the check

Values are cut to `SHOWN_LETTERS` characters: people read reasons, headers store them, and a value may be long or private. The dead letter
holds the whole value. The SQL of a reason is in a branch of CASE, so it is evaluated for bad rows only.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ottla.spark.pipeline.config.decode import named_groups
from ottla.spark.pipeline.config.model import Decode, Pipeline, Rule
from ottla.spark.pipeline.spark_refusals import refused_expression, spark_errors

#: The form of a query that writes dead letters alone.
REJECTED_FORM = "rejects"
#: Columns of an unfiltered frame besides those of its view.
RAW_KEY, RAW_VALUE = "__key", "__value"
VERDICT, BROKEN = "__verdict", "__rule"
HIDDEN = (RAW_KEY, RAW_VALUE, VERDICT, BROKEN)
DEAD_LETTER_COLUMNS = ("reason", "rule", "view", "topic", "partition", "offset", "timestamp", "at", "key", "value", "row")
#: Characters of a value in a reason.
SHOWN_LETTERS = 64
#: Bytes of a binary value in a reason, in hexadecimal.
SHOWN_BYTES = 16
#: Variables of lambdas. Columns do not have these names.
READ, FIELD = "__read", "__field"
FORMATS_OF_BYTES = ("avro", "protobuf", "json-schema", "raw")
PLACE = {
    "topic": ("_topic", "STRING"),
    "partition": ("_partition", "INT"),
    "offset": ("_offset", "BIGINT"),
    "timestamp": ("_timestamp", "TIMESTAMP"),
}


@dataclass(frozen=True, slots=True)
class UnfilteredView:
    """A view with its rejected rows."""

    view: str
    #: The view's columns and some of `HIDDEN`.
    frame: Any
    #: Whether undecodable values become dead letters.
    undecoded: bool

    def good_rows(self, frame: Any) -> Any:
        """The good rows of `frame` (this one, or a batch of it), with the view's columns."""
        return frame.where(f"{VERDICT} IS NULL").drop(*HIDDEN)

    def dead_letters(self, frame: Any) -> Any:
        """The dead letters of `frame`, with `DEAD_LETTER_COLUMNS`."""
        columns = set(frame.columns)
        position = [
            f"{f'`{column}`' if column in columns else f'CAST(NULL AS {kind})'} AS `{name}`" for name, (column, kind) in PLACE.items()
        ]
        raw = [
            f"{column if column in columns else 'CAST(NULL AS BINARY)'} AS `{name}`"
            for name, column in (("key", RAW_KEY), ("value", RAW_VALUE))
        ]
        decoded = ", ".join(f"`{name}`" for name in frame.columns if name not in HIDDEN)
        cause = [f"{VERDICT} AS reason", f"{BROKEN} AS rule", f"'{self.view}' AS view"]
        return frame.where(f"{VERDICT} <> ''").selectExpr(
            *cause, *position, "current_timestamp() AS `at`", *raw, f"make_valid_utf8(to_json(struct({decoded}))) AS `row`"
        )


def content_hash(letters: Any) -> tuple[int, int]:
    """The number of dead letters, and a hash of 63 bits that does not depend on their order and time."""
    columns = ", ".join(f"`{name}`" for name in DEAD_LETTER_COLUMNS if name != "at")
    row = letters.selectExpr("count(*) AS found", f"sum(CAST(xxhash64({columns}) AS DECIMAL(38, 0))) AS content").first()
    return int(row.found), int(row.content or 0) % 2**63


def reject_rows(pipeline: Pipeline, view: str, frame: Any) -> tuple[Any, UnfilteredView | None]:
    """The view without its rejected rows, and the unfiltered view if it has conditions.

    Raises: PipelineError if Spark rejects a check.
    """
    rules = [rule for rule in pipeline.rules if rule.view == view]
    source = pipeline.source_of(view)
    decode = None if source is None else source.decode
    undecoded = decode is not None and decode.bad_records == "dead_letter"
    if not rules and not undecoded:
        return frame.drop(*HIDDEN), None
    for rule in rules:
        try:
            frame.where(rule.check)
        except spark_errors() as error:
            message = refused_expression(pipeline, error, view, [name for name in frame.columns if name not in HIDDEN])
            raise pipeline.error(f"{rule.key}check", message) from None
    position = _position(frame.columns)
    cases = [_case(rule, position, frame) for rule in rules]
    names = [f"WHEN NOT coalesce({rule.check}, FALSE) THEN '{rule.name}'" for rule in rules]
    if decode is not None and undecoded:
        cases.insert(0, f"WHEN _malformed THEN {undecodable(decode, frame, RAW_VALUE)}")
        names.insert(0, "WHEN _malformed THEN CAST(NULL AS STRING)")
    whole = frame.selectExpr("*", f"CASE {' '.join(cases)} END AS {VERDICT}", f"CASE {' '.join(names)} END AS {BROKEN}")
    unfiltered = UnfilteredView(view, whole, undecoded)
    return unfiltered.good_rows(whole), unfiltered


def _case(rule: Rule, position: str, frame: Any) -> str:
    message = broken(f"rule {rule.name} is broken: {rule.check}", rule.check, frame)
    if rule.action == "fail":
        verdict = f"CAST(raise_error(concat({message}, {position})) AS STRING)"
    else:
        verdict = "''" if rule.action == "drop" else message
    return f"WHEN NOT coalesce({rule.check}, FALSE) THEN {verdict}"


def _position(columns: Sequence[str]) -> str:
    """SQL for a row's position in its topic, for an error."""
    if {"_topic", "_partition", "_offset"} <= set(columns):
        return "' by ', _topic, '-', _partition, ' at offset ', _offset"
    return "''"


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
