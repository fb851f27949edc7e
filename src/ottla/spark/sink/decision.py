"""The decision about a batch: which transactions of its tasks are committed. Pure: no Spark, no network.

    ottla-spark-QUERY                               transactional id of the driver, and group of its decisions
    ottla-spark-QUERY-RUN-PARTITION-ATTEMPT-TURN    transactional id of a task

QUERY is the application: the id of a Spark query, or the option txnAppId. RUN stands for one start of the query, or for one batch write
outside of a query, so another start does not abort transactions that an earlier one has decided to commit. TURN is 0 for a batch with an
even number, else 1. The batch after the next one of the same start uses the ids again, which fences attempts that still run. The next
batch does not: after a crash, the state of an id would not tell whether the last decided batch or the next one was aborted. The number of
ids grows with starts, partitions and attempts, not with batches.

The last decision of an application is stored as committed offsets of its group, in partitions of the topic `__ottla_batches`, which has no
records. Offset: the number of the batch. Metadata: the decision as JSON, from partition 0 on, in as many parts as it needs:

    partition 0   2 {"batch":7,"run":"8e2064bc","runs":["8e2064bc"],"tasks":[[0,0,4000,12],...
    partition 1   ...,[211,0,4211,12]],"content":0,"ended":false}

A batch is decided twice: before its transactions are committed, and with `ended` after that. The second decision tells a later start that
nothing was lost when an id is used by another batch, or has expired, or when its producer was fenced.
"""

import base64
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha1
from typing import NamedTuple, Self

import msgspec
from msgspec.structs import replace

DECISIONS_TOPIC = "__ottla_batches"
#: Partitions of the topic, which limit the size of a decision: 16 parts hold about 5,000 tasks.
DECISIONS_PARTITIONS = 16
#: Below the brokers' default of offset.metadata.max.bytes (4,096), with the number of parts.
PART_CHARACTERS = 4_000
#: The last starts of an application in its decision. A start that is not the last of them is fenced.
RUNS_KEPT = 8
PREFIX = "ottla-spark"
COMPRESSED = "z"


class Participant(NamedTuple):
    """The transaction of a task: its partition and attempt number in Spark, and the identity of its producer."""

    partition: int
    attempt: int
    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Names:
    """Transactional ids of an application."""

    application: str
    prefix: str = PREFIX

    @property
    def driver(self) -> str:
        return f"{self.prefix}-{self.application}"

    def task(self, run: str, partition: int, attempt: int, batch: int | None = None) -> str:
        """`batch`: the number of the batch, if it has one."""
        return f"{self.driver}-{run}-{partition}-{attempt}-{(batch or 0) % 2}"

    def of_tasks(self) -> str:
        """A pattern (RE2) for the ids of all tasks of this application, and of no other."""
        return f"{re.escape(self.driver)}-[0-9a-f]{{8}}-[0-9]+-[0-9]+-[01]"


def short_run(run_id: str | None) -> str:
    """A start of a query in eight hexadecimal digits."""
    return sha1((run_id or "").encode(), usedforsecurity=False).hexdigest()[:8]


class SinkDecision(msgspec.Struct, frozen=True):
    """The last decision of an application. Without a batch: none was decided."""

    batch: int = -1
    #: The start of the query whose tasks take part.
    run: str = ""
    #: The last starts that decided something, oldest first.
    runs: list[str] = []
    tasks: list[Participant] = []
    #: A hash of the rows, if a retry may produce other rows from the same records, which are written too.
    content: int = 0
    #: Every transaction of the decision is committed. Later, the state of an id does not tell: it expires, or is used again.
    ended: bool = False

    @property
    def is_ended(self) -> bool:
        """Whether nothing is left to commit."""
        return self.ended or not self.tasks

    def has(self, batch: int, content: int = 0) -> bool:
        """Whether the batch is decided, so that it is not written again."""
        return self.batch > batch or (self.batch == batch and self.content == content)

    def fences(self, run: str) -> bool:
        """Whether a later start has decided since `run` did."""
        return run in self.runs[:-1]

    def under(self, run: str) -> Self:
        """The same decision, confirmed by the start `run`."""
        return replace(self, runs=_with_last(self.runs, run))

    def completed(self) -> Self:
        """The same decision, whose transactions are committed."""
        return replace(self, ended=True)

    def next(self, batch: int, run: str, tasks: Iterable[Participant], content: int = 0) -> Self:
        return self.__class__(batch, run, _with_last(self.runs, run), sorted(tasks), content)

    def undone(self, run: str) -> Self:
        """The decision that the batch is to be written again."""
        return self.__class__(self.batch - 1, "", _with_last(self.runs, run), [])


def _with_last(runs: list[str], run: str) -> list[str]:
    return runs if runs[-1:] == [run] else [*runs, run][-RUNS_KEPT:]


def encoded(decision: SinkDecision) -> list[str]:
    """The parts. Raises: ValueError if there are more tasks than the topic has room for."""
    text = msgspec.json.encode(decision)
    whole = text.decode() if len(text) <= PART_CHARACTERS else COMPRESSED + base64.b85encode(zlib.compress(text, 9)).decode()
    parts = [whole[at : at + PART_CHARACTERS] for at in range(0, len(whole), PART_CHARACTERS)]
    if len(parts) > DECISIONS_PARTITIONS:
        raise ValueError(
            f"a batch of {len(decision.tasks)} tasks is too large for one decision; write fewer partitions (coalesce), or set delivery to"
            " at_least_once"
        )
    return [f"{len(parts)} {parts[0]}", *parts[1:]]


def decoded(parts: Mapping[int, str]) -> SinkDecision:
    """The decision in the metadata of partitions. Raises: ValueError if it is incomplete."""
    if 0 not in parts:
        return SinkDecision()
    count, _, first = parts[0].partition(" ")
    whole = first + "".join(parts[part] for part in range(1, int(count)))
    text = zlib.decompress(base64.b85decode(whole[1:])) if whole.startswith(COMPRESSED) else whole.encode()
    return msgspec.json.decode(text, type=SinkDecision)
