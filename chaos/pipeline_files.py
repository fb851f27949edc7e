"""The pipelines that `chaos.pipelines` runs, and what their output must be.

    copy    a topic into a table and a topic: each record once
    join    two topics, joined as streams with watermarks, into a table and a topic: each row of the result once

The join is a left outer join with a limit of time. Event `n` happens at `n` seconds divided by the rate. Answer `m` belongs to the event
`m - m % 3`, and comes 0, 6 or 12 seconds after it, so that

    events         0  1  2  3  4  5  6 ...
    answers        0           3           (0 s later: joined)
                   1           4           (6 s later: joined)
                   2           5           (12 s later: outside of the limit, 10 s)
    result, n      1  4  8 13 16 20 ...    4 * event, plus 1 or 2 for its answer, plus 0 if no answer is within the limit
                   2       14

A result without an answer is written when the watermark removes the event from the state. Times depend on numbers, not on clocks, and both
producers send numbers at the same rate; the watermark allows a minute for the difference between the topics. `CLOSING` has the two last
records, far in the future and without a partner, by which the watermark passes all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

EVENTS, ANSWERS, COPIES, PARTITIONS = "events", "answers", "copies", 4
ANSWERS_OF_EVENT = 3
ANSWER_EVERY_MS, LIMIT_MS = 6_000, 10_000
#: 2026-01-01, and long after the end of any run.
FIRST_MS, LAST_MS = 1_767_225_600_000, 4_102_444_800_000
CLOSING = {EVENTS: b'{"n": -1, "at": %d}' % LAST_MS, ANSWERS: b'{"n": -2, "m": -2, "at": %d}' % LAST_MS}

HEAD = """name = "chaos"
bootstrap = "{bootstrap}"
checkpoint = "{checkpoint}"
trigger = "200 milliseconds"
"""

COPY = """
[source]
topic = "events"

[decode]
format = "json"
fields = { n = "bigint" }

[[step]]
name = "copied"
sql = "SELECT n, _partition AS part, _offset AS place FROM records"
"""

JOIN = """
[[source]]
name = "events"
topic = "events"
watermark = { column = "at", delay = "1 minute" }
decode = { format = "json", fields = { n = "bigint", at = { type = "timestamp", format = "epoch_ms" } } }

[[source]]
name = "answers"
topic = "answers"
watermark = { column = "at", delay = "1 minute" }
decode = { format = "json", fields = { n = "bigint", m = "bigint", at = { type = "timestamp", format = "epoch_ms" } } }

[[step]]
name = "joined"
sql = '''
SELECT 4 * e.n + coalesce(a.m - e.n + 1, 0) AS n
FROM events e LEFT JOIN answers a ON e.n = a.n AND a.at BETWEEN e.at AND e.at + INTERVAL 10 SECONDS
'''
"""

SINKS = """
[[sink]]
type = "topic"
topic = "copies"
key = "CAST(n AS STRING)"

[[sink]]
type = "{kind}"
{place}
mode = "append"

[spark]
# The thorough compiler of the JVM costs a short life more than it gives.
"driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""


def event(number: int, rate: int) -> bytes:
    """The value of an event."""
    return b'{"n": %d, "at": %d}' % (number, FIRST_MS + number * 1000 // rate)


def answer(number: int, rate: int) -> bytes:
    """The value of an answer."""
    late = number % ANSWERS_OF_EVENT
    of = number - late
    return b'{"n": %d, "m": %d, "at": %d}' % (of, number, FIRST_MS + of * 1000 // rate + late * ANSWER_EVERY_MS)


def joined(events: Iterable[int], answers: Iterable[int]) -> Counter[int]:
    """The rows of the join, computed from the numbers in the topics."""
    within: dict[int, list[int]] = {}
    for number in answers:
        late = number % ANSWERS_OF_EVENT
        if late * ANSWER_EVERY_MS <= LIMIT_MS:
            within.setdefault(number - late, []).append(late)
    return Counter(4 * number + code for number in events for code in ([late + 1 for late in within.get(number, ())] or [0]))
