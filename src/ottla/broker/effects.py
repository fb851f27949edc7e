"""Effects: everything that a broker asks of the shell, in the imperative. The shell performs them in order after the step."""

from typing import Any

import msgspec

from ottla.base.acls import Operation, ResourceType
from ottla.base.ids import BrokerId, ConnectionId, TopicPartition
from ottla.base.log_levels import LogLevel
from ottla.base.ports import File, Op
from ottla.base.ssl_options import ListenerSslOptions
from ottla.broker.events import RequestArrived
from ottla.log.compactor import CompactionPlan
from ottla.log.directory_changes import LogChanges
from ottla.log.flush import FlushPlan, Slice
from ottla.log.scrub import ScrubPlan


class Effect(msgspec.Struct, kw_only=True, gc=False):
    """Base of all effects."""


class Respond(Effect):
    """Send the response of a request and read the connection's next one. Records in it may be ``Slice``s of log files."""

    connection: ConnectionId
    correlation_id: int
    api_version: int
    message: Any
    ticket: int = 0
    #: The message has very many elements: it is encoded in turns.
    in_turns: bool = False
    #: The connection is muted for this time after the response. Source: KIP-219.
    throttle_ms: int = 0
    #: The request, to send an error if this response cannot be encoded.
    call: RequestArrived[Any] | None = None


class Release(Effect):
    """Read the connection's next request without a response to this one (acks=0)."""

    connection: ConnectionId
    ticket: int = 0
    #: The connection is muted for this time first.
    throttle_ms: int = 0


class Close(Effect):
    """Close the connection: the protocol has no error for this case."""

    connection: ConnectionId
    reason: str


class AdoptOptions(Effect):
    """Apply the changed settings of the broker that concern connections and threads: those of ``ServerOptions``."""


class ScheduleFlush(Effect):
    """Return FlushDue after all input that has arrived by now, so that one flush serves all of it."""


class ScheduleTurn(Effect):
    """Return TurnDue after the input that has arrived by now; ``call``: the request whose turn it is, for quotas of request time; None
    for work of the broker itself.
    """

    call: RequestArrived[Any] | None


class Free(Effect):
    """Free the elements of these lists in steps, if nothing else uses them: to free 20,000 at once takes milliseconds."""

    objects: list[Any]


class Flush(Effect):
    """Sync the plans' files and directories off the event loop, in any grouping. Returns Flushed for each, or DirectoryFailed.

    At most one flush of a partition is in progress.
    """

    directory: str
    plans: list[tuple[TopicPartition, FlushPlan]]


class StartWriteback(Effect):
    """Start kernel writeback of these bytes, so that there are few dirty pages and an append never waits for the device. A hint."""

    directory: str
    file: File
    position: int
    size: int


class ReadLog(Effect):
    """Read bytes of a log file off the event loop. Returns LogRead or DirectoryFailed."""

    directory: str
    ticket: int
    slice: Slice


class CheckCertificates(Effect):
    """Check in a thread whether the listeners of this broker could have these certificates. Returns CertificatesChecked."""

    ticket: int
    #: By listener, in lower case.
    listeners: dict[str, ListenerSslOptions]


class LookUpSchemas(Effect):
    """Ask the schema registry whether these schemas are registered under a subject. Returns SchemasLookedUp."""

    ticket: int
    subject: str
    ids: tuple[int, ...]


class ChangeLogs(Effect):
    """Carry out changes of logs off the event loop. Returns LogsChanged or DirectoryFailed. At most one per directory is in progress.

    ChangeLogs and ReplaceFiles of a directory are performed in the order of the effects.
    """

    directory: str
    changes: LogChanges


class Remove(Effect):
    """Unlink files or directories off the event loop. They are already renamed."""

    directory: str
    paths: tuple[str, ...]


class ReplaceFiles(Effect):
    """Write small files, each atomically and durably (``Disk.replace_file``), off the event loop, in order; a later version wins."""

    directory: str
    files: tuple[tuple[str, bytes], ...]


class Clean(Effect):
    """Compact a log by a plan, off the event loop, within a rate limit for all compactions. Returns Cleaned.

    At most one per partition is in progress.
    """

    partition: TopicPartition
    directory: str
    plan: CompactionPlan
    bytes_per_second: float


class Scrub(Effect):
    """Compare a segment with its checksums by a plan, off the event loop, within a rate limit. Returns Scrubbed.

    At most one is in progress.
    """

    partition: TopicPartition
    directory: str
    plan: ScrubPlan
    bytes_per_second: float


class StoreSubmit(Effect):
    """Execute a ``multi`` on the store. Returns StoreAnswered."""

    ticket: int
    ops: tuple[Op, ...]


class PeerRequest(Effect):
    """Send a request to another broker. Returns PeerAnswered."""

    broker: BrokerId
    ticket: int
    api_version: int
    message: Any


class Log(Effect):
    """Log one line, never per request; see ``event_log.py``."""

    level: LogLevel
    #: One of ``base/log_levels.py``.
    logger: str
    message: str
    #: By name: texts, numbers, or lists of them.
    fields: dict[str, Any] = {}


class SetLogLevels(Effect):
    """Change the levels of loggers of the process; None: the level of the logger above it."""

    levels: dict[str, LogLevel | None]


class ReceiveTelemetry(Effect):
    """Decode and keep the metrics that a client pushed (KIP-714), off the event loop. They are not trusted."""

    client_instance_id: bytes
    #: Id, name and version of the client.
    attributes: dict[str, str]
    #: Kafka's number of the codec.
    compression: int
    metrics: bytes
    #: How long the metrics are kept.
    kept_ms: int


class Audit(Effect):
    """Log a decision about a request: who may, or may not, do what, and by which rule."""

    call: RequestArrived[Any]
    allowed: bool
    operation: Operation
    resource_type: ResourceType
    #: Empty: any resource of the type.
    name: str
    rule: str
    #: How often the request names the resource.
    times: int


class RequestFailed(Effect):
    """Log, count and record an unexpected exception that failed one request and nothing else (``isolation.py``)."""

    #: None: not a request; ``what`` describes it.
    call: RequestArrived[Any] | None
    what: str
    error: Exception


class Halt(Effect):
    """Stop the process: no log directory is left, or another broker has this id."""

    reason: str
