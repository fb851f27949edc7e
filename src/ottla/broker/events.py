"""All that can happen to a broker. Events are past tense; a shell, or the simulator, makes them and hands each to ``Node.step``.

A memoryview inside ``RequestArrived.body`` (the records of a Produce) is only valid during the step that receives it: the shell reuses
the buffer afterwards.
"""

from typing import Any

import msgspec

from ottla.base.ids import ConnectionId, Offset, TopicPartition
from ottla.base.ports import NodeState, SessionState, StoreResult
from ottla.log import compactor, scrub


class Event(msgspec.Struct, kw_only=True, gc=False):
    """Base of all events."""


class RequestArrived(Event):
    """A whole request was read and decoded. The connection stays muted until it is answered, released or closed."""

    connection: ConnectionId
    correlation_id: int
    api_key: int
    api_version: int
    client_id: str | None
    body: Any
    #: Address of the client, for limits and DescribeCluster's answer; no port.
    host: str = ""
    #: Address and port under which this client reached us; the host is told back where we listen everywhere and advertise nothing.
    local: tuple[str, int] = ("", 0)
    #: Tells the request from others of its connection: a few Produce requests may be in work together.
    ticket: int = 0


class ConnectionClosed(Event):
    """The peer went away or was cut off; whatever it waited for is forgotten."""

    connection: ConnectionId


class Settled(Event):
    """Everything that had come when a step asked to ``Settle`` was heard."""


class Flushed(Event):
    """A group of flushes was carried out: of each partition, all bytes below the offset are on disk."""

    marks: tuple[tuple[TopicPartition, Offset], ...]


class LogsChanged(Event):
    """A ChangeLogs was carried out. ``refused``: partitions whose log was not created, because the disk is full."""

    directory: str
    refused: tuple[TopicPartition, ...] = ()


class Cleaned(Event):
    """A Clean is over. ``result`` None: it was given up, for want of room or of the log; ``damage`` names a batch that is not sound."""

    partition: TopicPartition
    result: compactor.CompactionResult | None = None
    damage: str = ""


class Scrubbed(Event):
    """A Scrub is over. ``result`` None: it was given up, since the broker stops or the segment is gone."""

    partition: TopicPartition
    result: scrub.ScrubResult | None = None


class DirectoryFailed(Event):
    """A file operation in this log directory raised OSError; nothing in it is trusted or tried again."""

    directory: str
    reason: str


class SpaceMeasured(Event):
    """Free and total bytes of the file system that holds the log directory."""

    directory: str
    free_bytes: int
    total_bytes: int


class LogRead(Event):
    """A ReadLog was carried out; ``data`` None when the file is gone."""

    ticket: int
    data: bytes | None


class StoreChanged(Event):
    """A watched store node was created, changed or (``data`` None) deleted; in the order of the store."""

    state: NodeState


class StoreAnswered(Event):
    """A StoreSubmit was carried out or refused."""

    ticket: int
    result: StoreResult


class SessionChanged(Event):
    """The session with the store is suspended, lost, or there again; in the order of the store with what else it tells."""

    state: SessionState


class PeerAnswered(Event):
    """Another broker answered an Ask; ``message`` None when it could not be reached."""

    ticket: int
    message: Any


class StopAsked(Event):
    """An operator wants this broker to stop: it hands over what others can take, and may be stopped once ``Node.leaving.over``."""


class Ticked(Event):
    """Time passed; sent at or after ``Node.next_deadline_ms`` and at least once a second.

    ``now_ms`` of a step never goes back and makes deadlines; ``wall_ms`` is the calendar's, for record
    timestamps and retention.
    """

    wall_ms: int
