"""Rows that must not go on, since they do not decode or break a rule: they become dead letters, are left out, or end the query.

A view with such conditions is *judged*: each row gets a verdict in one SQL expression, first that of decoding, then those of the rules in
the order of the file. A check counts as broken when it is false or null, so that nothing unknown slips through.

    verdict   null           the row is good
              ""             left out (`action = "drop"`)
              a sentence     a dead letter, and why
              raised         `action = "fail"`: the query ends with the sentence, and the batch is run again at the next start

Good rows alone are the view that steps and sinks see, so bad ones leave before any aggregation. Who writes the dead letters:

    a sink takes the view itself, as rows that do not change     the query of that sink, batch by batch with the good rows: one read of
                                                                 the topic, one checkpoint for both
    only steps take it (its results are aggregated, say)         a query of its own over the same source, with a checkpoint of its own

Either way each bad row of each batch is written: into a Delta table once, into a topic at least once.

The rules may be others when a batch is run again after a crash, or a function, or a table that a step looks into. So the transaction of a
batch's letters carries a number made of them beside the batch's: a run that finds the same ones leaves them out, one that finds others
writes all of its own, besides those of before. They are written before the good rows. So whatever the rules of the runs were that wrote
them, a row is in the sink or among the letters:

    good rows of batch N   are there: by rules whose letters were there before them. The sink keeps them (Delta, append), or replaces them
                           (Parquet) by those of the rules of now, whose letters are there by then
                           are not there: they are written by the rules of now, after their letters

    Delta    reason  rule  view  topic  partition  offset  timestamp  at (when found)  key  value (both as they were)  row (decoded, JSON)
    topic    key and value as they were; the rest as headers, `ottla.reason`, `ottla.topic`, `ottla.offset` ...

A step's rows have lost the record's bytes: their `value` is null in the table (and in a topic the row as JSON), and `topic`, `partition`,
`offset` and `timestamp` are there as far as the step selects `_topic`, `_partition`, `_offset` and `_timestamp`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ottla.spark.pipeline.config.model import Pipeline, Rule
from ottla.spark.pipeline.rejection_reasons import broken, undecodable
from ottla.spark.pipeline.spark_refusals import refused_expression, spark_errors

#: The form of a query that writes dead letters alone.
REJECTS = "rejects"
#: Columns that a judged frame has besides those of its view.
RAW_KEY, RAW_VALUE = "__key", "__value"
VERDICT, BROKEN = "__verdict", "__rule"
HIDDEN = (RAW_KEY, RAW_VALUE, VERDICT, BROKEN)
LETTER_COLUMNS = ("reason", "rule", "view", "topic", "partition", "offset", "timestamp", "at", "key", "value", "row")
PLACE = {
    "topic": ("_topic", "STRING"),
    "partition": ("_partition", "INT"),
    "offset": ("_offset", "BIGINT"),
    "timestamp": ("_timestamp", "TIMESTAMP"),
}


@dataclass(frozen=True, slots=True)
class Judged:
    """A view before its bad rows have left."""

    view: str
    #: The view's columns and those of `HIDDEN` that it has.
    frame: Any
    #: Whether values that do not decode are among its dead letters.
    undecoded: bool

    def kept(self, frame: Any) -> Any:
        """The good rows of `frame` (this one, or a batch of it), with the view's columns."""
        return frame.where(f"{VERDICT} IS NULL").drop(*HIDDEN)

    def letters(self, frame: Any) -> Any:
        """The dead letters of `frame`, with `LETTER_COLUMNS`."""
        there = set(frame.columns)
        place = [f"{f'`{column}`' if column in there else f'CAST(NULL AS {kind})'} AS `{name}`" for name, (column, kind) in PLACE.items()]
        raw = [
            f"{column if column in there else 'CAST(NULL AS BINARY)'} AS `{name}`"
            for name, column in (("key", RAW_KEY), ("value", RAW_VALUE))
        ]
        shown = ", ".join(f"`{name}`" for name in frame.columns if name not in HIDDEN)
        said = [f"{VERDICT} AS reason", f"{BROKEN} AS rule", f"'{self.view}' AS view"]
        return frame.where(f"{VERDICT} <> ''").selectExpr(
            *said, *place, "current_timestamp() AS `at`", *raw, f"make_valid_utf8(to_json(struct({shown}))) AS `row`"
        )


def content_of(letters: Any) -> tuple[int, int]:
    """How many letters there are, and a number of 63 bits that others would not have: whatever their order, and without when they were
    found.
    """
    columns = ", ".join(f"`{name}`" for name in LETTER_COLUMNS if name != "at")
    row = letters.selectExpr("count(*) AS found", f"sum(CAST(xxhash64({columns}) AS DECIMAL(38, 0))) AS content").first()
    return int(row.found), int(row.content or 0) % 2**63


def judge(pipeline: Pipeline, view: str, frame: Any) -> tuple[Any, Judged | None]:
    """The view without its bad rows, and the view before they left where there are conditions for it.

    Raises: PipelineError when Spark refuses a check.
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
            told = refused_expression(pipeline, error, view, [name for name in frame.columns if name not in HIDDEN])
            raise pipeline.error(f"{rule.key}check", told) from None
    place = _place(frame.columns)
    cases = [_case(rule, place, frame) for rule in rules]
    names = [f"WHEN NOT coalesce({rule.check}, FALSE) THEN '{rule.name}'" for rule in rules]
    if decode is not None and undecoded:
        cases.insert(0, f"WHEN _malformed THEN {undecodable(decode, frame, RAW_VALUE)}")
        names.insert(0, "WHEN _malformed THEN CAST(NULL AS STRING)")
    whole = frame.selectExpr("*", f"CASE {' '.join(cases)} END AS {VERDICT}", f"CASE {' '.join(names)} END AS {BROKEN}")
    judged = Judged(view, whole, undecoded)
    return judged.kept(whole), judged


def _case(rule: Rule, place: str, frame: Any) -> str:
    said = broken(f"rule {rule.name} is broken: {rule.check}", rule.check, frame)
    if rule.action == "fail":
        verdict = f"CAST(raise_error(concat({said}, {place})) AS STRING)"
    else:
        verdict = "''" if rule.action == "drop" else said
    return f"WHEN NOT coalesce({rule.check}, FALSE) THEN {verdict}"


def _place(columns: Sequence[str]) -> str:
    """SQL for where a row comes from, for an error."""
    if {"_topic", "_partition", "_offset"} <= set(columns):
        return "' by ', _topic, '-', _partition, ' at offset ', _offset"
    return "''"
