"""Events: everything that can happen to a broker, in the past tense. The shell or the simulator passes each to ``Node.step``.

A memoryview in ``RequestArrived.body`` (the records of a Produce) is valid only during the step: the shell reuses the buffer.
"""

from typing import Any, Generic, TypeVar

import msgspec

from ottla.base.ids import ConnectionId, Offset, TopicPartition
from ottla.base.log_levels import LogLevel
from ottla.base.origin import NOWHERE, Origin
from ottla.base.ports import NodeState, SessionState, StoreResult
from ottla.log import compactor, scrub

#: Class of a request's message.
Body = TypeVar("Body")


class Event(msgspec.Struct, kw_only=True, gc=False):
    """Base of all events."""


class RequestArrived(Event, Generic[Body]):
    """A request was received and decoded. The connection stays muted until the request is answered, released or closed."""

    connection: ConnectionId
    correlation_id: int
    api_key: int
    api_version: int
    client_id: str | None
    body: Body
    origin: Origin = NOWHERE
    #: Identifies the request within its connection: several Produce requests may be in progress.
    ticket: int = 0
    #: The Envelope in which another broker forwarded the request; its response goes into the Envelope's.
    envelope: "RequestArrived[Any] | None" = None
    #: Bytes of the frame, for quotas; 0 for a request of a broker of this process.
    size: int = 0
    #: Monotonic clock of the shell, for its metrics; 0 where there are none.
    arrived_ns: int = 0
    #: Whether it is handled in turns; its response is then encoded in turns, too.
    in_turns: bool = False


class RequestTimed(Event):
    """The step of a request took this much CPU time. Sent after the step, if some client has a quota of request time."""

    connection: ConnectionId
    api_key: int
    client_id: str | None
    origin: Origin
    spent_ns: int


class PeersResolved(Event):
    """The hosts of registered brokers were resolved; requests that only brokers send are accepted from these addresses."""

    addresses: tuple[str, ...]


class ConnectionClosed(Event):
    """The client's connection ended; its delayed requests are dropped."""

    connection: ConnectionId


class FlushDue(Event):
    """All input that had arrived at a ``ScheduleFlush`` effect was processed."""


class TurnDue(Event):
    """The input that had arrived at a ``ScheduleTurn`` effect was processed."""


class Flushed(Event):
    """Flushes were carried out: of each partition, all bytes below the offset are on disk."""

    marks: tuple[tuple[TopicPartition, Offset], ...]


class LogsChanged(Event):
    """A ChangeLogs was carried out. ``refused``: partitions whose log was not created because the disk is full."""

    directory: str
    refused: tuple[TopicPartition, ...] = ()


class Cleaned(Event):
    """A Clean ended. ``result`` None: it was abandoned because of lack of space or a closed log; ``damage`` names a damaged batch."""

    partition: TopicPartition
    result: compactor.CompactionResult | None = None
    damage: str = ""


class Scrubbed(Event):
    """A Scrub ended. ``result`` None: it was abandoned because the broker stops or the segment was deleted."""

    partition: TopicPartition
    result: scrub.ScrubResult | None = None


class DirectoryFailed(Event):
    """A file operation in this log directory raised OSError; the directory is not used or retried any more."""

    directory: str
    reason: str


class SpaceMeasured(Event):
    """Free and total bytes of the file system of a log directory."""

    directory: str
    free_bytes: int
    total_bytes: int


class LogRead(Event):
    """A ReadLog was carried out; ``data`` None if the file is gone."""

    ticket: int
    data: bytes | None


class CertificatesChecked(Event):
    """A CheckCertificates was carried out; ``problem`` is empty if the certificates can be used."""

    ticket: int
    problem: str


class SchemasLookedUp(Event):
    """A LookUpSchemas was carried out. Ids that are in neither list could not be asked; ``problem`` is then the reason."""

    ticket: int
    subject: str
    registered: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    problem: str = ""


class StoreChanged(Event):
    """A watched store node was created, changed or (``data`` None) deleted; in the store's order."""

    state: NodeState


class StoreAnswered(Event):
    """A StoreSubmit was carried out or refused."""

    ticket: int
    result: StoreResult


class LogLevelsChanged(Event):
    """Another broker of this process changed levels of loggers; ``levels`` has all that are set."""

    levels: dict[str, LogLevel]


class SessionChanged(Event):
    """The store session was suspended, lost, or connected again; in the store's order with other events."""

    state: SessionState


class PeerAnswered(Event):
    """Another broker answered a PeerRequest; ``message`` None if it could not be reached."""

    ticket: int
    message: Any


class StopRequested(Event):
    """The operator stops this broker: it starts a controlled shutdown, and may be stopped after ``Node.controlled_shutdown.over``."""


class Ticked(Event):
    """Time passed. Sent at or after ``Node.next_deadline_ms``, and at least once a second.

    ``wall_ms`` is the wall clock, for record timestamps and retention.
    """

    wall_ms: int
