"""All that a broker can ask of the world. Effects are imperative; the shell performs them in order, after the step that made them."""

from typing import Any

import msgspec

from ottla.base.ids import BrokerId, ConnectionId, TopicPartition
from ottla.base.ports import File, Op
from ottla.broker.events import RequestArrived
from ottla.log.compactor import CompactionPlan
from ottla.log.directory_changes import LogChanges
from ottla.log.flush import FlushPlan, Slice
from ottla.log.scrub import ScrubPlan


class Effect(msgspec.Struct, kw_only=True, gc=False):
    """Base of all effects."""


class Respond(Effect):
    """Send the answer to a request and read the connection's next one. Records in it may be ``Slice``s of log files."""

    connection: ConnectionId
    correlation_id: int
    api_version: int
    message: Any
    ticket: int = 0
    #: The request, to refuse it should this answer not be encodable.
    call: RequestArrived | None = None


class Release(Effect):
    """Read the connection's next request; this one gets no answer (acks=0)."""

    connection: ConnectionId
    ticket: int = 0


class Close(Effect):
    """Close the connection: the protocol has no better answer."""

    connection: ConnectionId
    reason: str


class Settle(Effect):
    """Answer with Settled once all that has come by now was heard: the flushes that begin then serve all of it."""


class Flush(Effect):
    """Sync the plans' files and directories off the loop, together or not; answer with Flushed for each, or with DirectoryFailed.

    At most one flush of a partition is under way.
    """

    directory: str
    plans: list[tuple[TopicPartition, FlushPlan]]


class StartWriteback(Effect):
    """Have the kernel begin writing these bytes, so that dirty pages stay few and an append never waits for the device. A hint."""

    directory: str
    file: File
    position: int
    size: int


class ReadLog(Effect):
    """Read bytes of a log file off the loop; answer with LogRead, or DirectoryFailed."""

    directory: str
    ticket: int
    slice: Slice


class ChangeLogs(Effect):
    """Carry out the changes off the loop; answer with LogsChanged, or DirectoryFailed. At most one per directory is under way.

    ChangeLogs and ReplaceFiles of a directory are performed one after the other, in the order in which they were asked for.
    """

    directory: str
    changes: LogChanges


class Remove(Effect):
    """Unlink files, or whole directories, off the loop. They are already renamed out of the way."""

    directory: str
    paths: tuple[str, ...]


class ReplaceFiles(Effect):
    """Write whole small files, each atomically and durably (``Disk.replace_file``), off the loop, in order; a newer one wins."""

    directory: str
    files: tuple[tuple[str, bytes], ...]


class Clean(Effect):
    """Compact a log as planned, off the loop, no faster than so many bytes per second in all; answer with Cleaned.

    At most one per partition is under way.
    """

    partition: TopicPartition
    directory: str
    plan: CompactionPlan
    bytes_per_second: float


class Scrub(Effect):
    """Compare a segment with its checksums as planned, off the loop, no faster than so many bytes per second; answer with Scrubbed.

    At most one is under way.
    """

    partition: TopicPartition
    directory: str
    plan: ScrubPlan
    bytes_per_second: float


class StoreSubmit(Effect):
    """Carry out a ``multi`` on the store; answer with StoreAnswered."""

    ticket: int
    ops: tuple[Op, ...]


class Ask(Effect):
    """Send a request to another broker; answer with PeerAnswered."""

    broker: BrokerId
    ticket: int
    api_version: int
    message: Any


class Warn(Effect):
    """Tell the operator, in one line, of a state that needs a hand: said when it begins and when it ends, not for each request it costs."""

    message: str


class RequestFailed(Effect):
    """Log, count and record an unexpected exception that cost a request, and nothing else (``isolation.py``)."""

    #: None: no request, but ``what``.
    call: RequestArrived | None
    what: str
    error: Exception


class Halt(Effect):
    """Stop the process: no log directory is left, or the broker's id is taken."""

    reason: str
