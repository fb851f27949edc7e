"""Performs the effects of one broker. Operations that may wait for a disk run in threads; their outcome is an event.

After a failed file operation a log directory is not used again.
"""

import asyncio
import ctypes
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Executor
from errno import EMFILE, ENFILE, ENOSPC
from functools import partial
from time import monotonic_ns
from typing import Any, Protocol

from ottla.base.ids import ConnectionId
from ottla.base.log_levels import LogLevel
from ottla.base.ports import Disk, StoreRequests, StoreResult
from ottla.base.ssl_options import ListenerSslOptions
from ottla.broker import effects, events
from ottla.log.flush import Slice
from ottla.net.server_connection import ServerConnection
from ottla.server.broker_log import set_levels
from ottla.server.environment import LogMaintenance
from ottla.server.flusher import Flusher, Marks, Workers
from ottla.server.metrics.client_telemetry import ClientMetrics
from ottla.server.metrics.counters import Counters
from ottla.server.metrics.request_times import RequestTimes
from ottla.server.peer_requests import Peers
from ottla.server.schema_lookups import NO_URL
from ottla.wire.framing import encode_response
from ottla.wire.messages.fetch import FetchResponse, PartitionData

log = logging.getLogger("ottla.server")

SYNC_FILE_RANGE_WRITE = 2
#: The only API whose requests end without an answer (acks=0).
PRODUCE = 0
SPACE_INTERVAL_S = 1.0


class SchemaQuestions(Protocol):
    """Asks the schema registry."""

    def ask(self, effect: effects.LookUpSchemas, done: Callable[[events.SchemasLookedUp], object]) -> None:
        """``done`` may be called in any thread."""

    def close(self) -> None: ...


class Performer:
    #: Times of requests, metrics of clients, and what changes levels of loggers; replaced before the shell is made, if at all.
    times: RequestTimes
    client_metrics: ClientMetrics
    #: Asks the schema registry; None without one.
    schema_lookups: SchemaQuestions | None = None
    log_levels: Callable[[Mapping[str, LogLevel | None]], None] = staticmethod(set_levels)
    _stopped = False
    #: Encodes an answer with very many elements, and sends it; set by the shell.
    respond_in_turns: Callable[[effects.Respond], None]
    #: Takes the answer of a part of a Produce request: its ticket is negative; set by the shell.
    part_answered: Callable[[effects.Respond | effects.Release], None]

    def __init__(
        self,
        *,
        disks: Mapping[str, Disk],
        session: StoreRequests,
        executor: Executor,
        threads: int,
        flush_worker: Workers,
        cleaners: LogMaintenance,
        peers: Peers,
        counters: Counters,
        halted: Callable[[str], None],
        crashed: Callable[[BaseException], None],
        adopt: Callable[[], None] = lambda: None,
        certificates_problem: Callable[[dict[str, ListenerSslOptions]], str] = lambda listeners: "",
    ) -> None:
        """``disks`` by root. ``threads`` is the number of files of one flush batch synced at once. ``halted`` stops the process cleanly;
        ``adopt`` applies changed settings to the process; ``certificates_problem`` says in a thread why listeners cannot use certificates.
        """
        #: Open connections that sent a request.
        self.connections: dict[ConnectionId, ServerConnection] = {}
        #: Callbacks for answers to requests of other brokers of this process, by connection id.
        self.peer_waits: dict[ConnectionId, Callable[[Any], None]] = {}
        #: Gets the outcomes; set once, when the shell is made.
        self.handle: Callable[[events.Event], None]
        self._disks = disks
        self._session = session
        self._executor = executor
        self._peers = peers
        self._counters = counters
        self._halted = halted
        self._crashed = crashed
        self._adopt = adopt
        self.times, self.client_metrics = RequestTimes(-1, -1), ClientMetrics()
        self._certificates_problem = certificates_problem
        self._loop = asyncio.get_running_loop()
        #: Log directories that are no longer used.
        self._failed: set[str] = set()
        #: By log directory.
        self.flushers = {
            root: Flusher(
                disk,
                executor=executor,
                lanes=threads,
                counters=counters,
                done=self._flushed,
                failed=partial(self._flush_failed, root),
                workers=flush_worker,
            )
            for root, disk in disks.items()
        }
        #: By log directory: queued changes of files, performed in order. An entry exists while one is being performed.
        self._changes: dict[str, deque[Callable[[], Awaitable[None]]]] = {}
        #: By log directory: the last queued change if it replaces small files, by path. More files can still join it.
        self._replacing: dict[str, dict[str, bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._measuring: asyncio.TimerHandle | None = None
        self._cleaners = cleaners
        #: By type of effect.
        self.performers = self._performers()

    def _performers(self) -> dict[type, Callable[[Any], None]]:
        return {
            effects.Respond: self.respond,
            effects.Release: self._release,
            effects.Close: self._close,
            effects.ScheduleFlush: self._settle,
            effects.Flush: self._flush,
            effects.StartWriteback: self._start_writeback,
            effects.ReadLog: self._read_log,
            effects.CheckCertificates: self._check_certificates,
            effects.LookUpSchemas: self._look_up_schemas,
            effects.ChangeLogs: self._change_logs,
            effects.Remove: self._remove,
            effects.ReplaceFiles: self._replace_files,
            effects.Clean: self._clean,
            effects.Scrub: self._scrub,
            effects.StoreSubmit: self._store_submit,
            effects.PeerRequest: self._send_to_peer,
            effects.Halt: self._halt,
            effects.AdoptOptions: self._adopt_options,
            effects.SetLogLevels: self._set_log_levels,
            effects.ReceiveTelemetry: self._receive_telemetry,
        }

    async def idle(self) -> None:
        """Returns when no thread works for the broker and all outcomes are handled."""
        while True:
            for flusher in self.flushers.values():
                await flusher.idle()
            if not self._tasks:
                return
            await asyncio.wait(self._tasks)

    def stop(self) -> None:
        """Stops timers and compactions."""
        self._stopped = True
        self._cleaners.stop()
        if self._measuring is not None:
            self._measuring.cancel()

    def close(self) -> None:
        """Ends the flush threads. Call when idle."""
        for flusher in self.flushers.values():
            flusher.close()
        if self.schema_lookups is not None:
            self.schema_lookups.close()

    def set_threads(self, count: int) -> None:
        """Sets the number of files of one flush batch synced at once."""
        for flusher in self.flushers.values():
            flusher.set_lanes(count)

    def _adopt_options(self, effect: effects.AdoptOptions) -> None:
        self._adopt()

    def _receive_telemetry(self, effect: effects.ReceiveTelemetry) -> None:
        self.client_metrics.take(effect)

    def _set_log_levels(self, effect: effects.SetLogLevels) -> None:
        self.log_levels(effect.levels)

    # Responses

    def respond(self, effect: effects.Respond) -> None:
        """Encodes an answer and passes it to its connection. Raises: what encoding raises."""
        connection = self.connections.get(effect.connection)
        if effect.ticket < 0:
            self.part_answered(effect)
        elif connection is not None:
            call = effect.call
            if call is not None and call.arrived_ns:
                self.times.answered(call, monotonic_ns())
            if effect.in_turns:
                self.respond_in_turns(effect)
            else:
                self.send(effect, encode_response(effect.message, effect.api_version, effect.correlation_id))
        else:
            self._answer_peer(effect.connection, effect.message)

    def send(self, effect: effects.Respond, chunks: list[Any]) -> None:
        """Passes an encoded answer to its connection, if that is still open."""
        connection = self.connections.get(effect.connection)
        if connection is None:
            return
        if effect.throttle_ms:
            assert effect.call is not None, "the throttled client is that of a request"
            self._mute(connection, effect.throttle_ms, effect.call.api_key)
        connection.respond(chunks, effect.ticket)

    def _release(self, effect: effects.Release) -> None:
        connection = self.connections.get(effect.connection)
        if effect.ticket < 0:
            self.part_answered(effect)
        elif connection is not None:
            if effect.throttle_ms:
                self._mute(connection, effect.throttle_ms, PRODUCE)
            connection.release(effect.ticket)
        else:
            self._answer_peer(effect.connection, None)

    def _mute(self, connection: ServerConnection, throttle_ms: int, api_key: int) -> None:
        """Before the answer, so that it does not start the next request."""
        self.times.throttled(api_key, throttle_ms)
        self._counters.throttled_requests += 1
        self._counters.throttle_ms += throttle_ms
        connection.mute(throttle_ms)

    def _close(self, effect: effects.Close) -> None:
        self.close_connection(effect.connection, "refused", effect.reason)

    def close_connection(self, number: ConnectionId, kind: str, detail: str) -> None:
        """Closes a connection. For a broker of this process: reports that there is no answer."""
        connection = self.connections.get(number)
        if connection is not None:
            connection.close(kind, detail)
        else:
            self._answer_peer(number, None)

    def _answer_peer(self, number: ConnectionId, message: Any) -> None:
        answered = self.peer_waits.pop(number, None)
        if answered is None:
            return
        partitions = [data for topic in message.responses for data in topic.partitions] if isinstance(message, FetchResponse) else []
        slices = [data for data in partitions if isinstance(data.records, Slice)]
        if slices:
            self._begin(self._answer_follower(answered, message, slices))
        else:
            answered(message)

    async def _answer_follower(self, answered: Callable[[Any], None], message: FetchResponse, slices: list[PartitionData]) -> None:
        """A follower of this process gets bytes instead of file ranges. Reading them may wait for the disk."""
        try:
            await self._in_thread(_read_slices, slices)
        except OSError as error:
            # The partition was removed, or the next write finds the directory failed. The follower fetches again.
            log.warning("cannot read records for a follower of this process, which retries: %s", error)
            answered(None)
        else:
            answered(message)

    # Log directories

    def _settle(self, effect: effects.ScheduleFlush) -> None:
        # Two turns later: the next turn sends the answers of the last flush, and requests that clients then send join this flush.
        self._loop.call_soon(self._loop.call_soon, self._settled)

    def _settled(self) -> None:
        if not self._stopped:
            self.handle(events.FlushDue())

    def _flush(self, effect: effects.Flush) -> None:
        if effect.directory not in self._failed:
            self.flushers[effect.directory].flush(effect.plans)

    def _flush_failed(self, directory: str, error: Exception) -> None:
        if isinstance(error, OSError):
            self._directory_failed(directory, error)
        else:
            self._crashed(error)

    def _flushed(self, marks: Marks) -> None:
        self.handle(events.Flushed(marks=marks))

    def _start_writeback(self, effect: effects.StartWriteback) -> None:
        fileno = getattr(effect.file, "fileno", None)
        if fileno is None or effect.directory in self._failed:
            return
        try:
            descriptor = os.dup(fileno())
        except OSError:
            # This is a hint; the next read or write of the file meets the error.
            return
        self._executor.submit(_write_back, descriptor, effect.position, effect.size)

    def _read_log(self, effect: effects.ReadLog) -> None:
        if effect.directory not in self._failed:
            self._begin(self._read(effect))

    async def _read(self, effect: effects.ReadLog) -> None:
        try:
            data: bytes | None = await self._in_thread(effect.slice.read)
        except FileNotFoundError:
            # The partition was removed meanwhile.
            data = None
        except OSError as error:
            self._directory_failed(effect.directory, error)
            return
        self.handle(events.LogRead(ticket=effect.ticket, data=data))

    def _check_certificates(self, effect: effects.CheckCertificates) -> None:
        self._begin(self._check(effect))

    async def _check(self, effect: effects.CheckCertificates) -> None:
        problem = await self._in_thread(self._certificates_problem, effect.listeners)
        self.handle(events.CertificatesChecked(ticket=effect.ticket, problem=problem))

    def _look_up_schemas(self, effect: effects.LookUpSchemas) -> None:
        if self.schema_lookups is None:
            self._loop.call_soon(self._looked_up, events.SchemasLookedUp(ticket=effect.ticket, subject=effect.subject, problem=NO_URL))
        else:
            self.schema_lookups.ask(effect, lambda event: self._loop.call_soon_threadsafe(self._looked_up, event))

    def _looked_up(self, event: events.SchemasLookedUp) -> None:
        if not self._stopped:
            self.handle(event)

    def _remove(self, effect: effects.Remove) -> None:
        if effect.directory not in self._failed:
            disk = self._disks[effect.directory]
            self._begin(self._act(effect.directory, partial(_remove_all, disk, effect.paths)))

    def _replace_files(self, effect: effects.ReplaceFiles) -> None:
        waiting = self._replacing.get(effect.directory)
        if waiting is not None:
            waiting.update(effect.files)
            return
        files = dict(effect.files)
        self._enqueue(effect.directory, partial(self._replace, effect.directory, files))
        self._replacing[effect.directory] = files

    async def _replace(self, directory: str, files: dict[str, bytes]) -> None:
        if self._replacing.get(directory) is files:
            del self._replacing[directory]
        await self._act(directory, partial(_replace_all, self._disks[directory], files))

    def _change_logs(self, effect: effects.ChangeLogs) -> None:
        # Later checkpoints reflect this change, so they must not join a replacement that is queued before it.
        self._replacing.pop(effect.directory, None)
        self._enqueue(effect.directory, partial(self._apply_changes, effect))

    async def _apply_changes(self, effect: effects.ChangeLogs) -> None:
        try:
            refused = await self._in_thread(effect.changes.carry_out, self._disks[effect.directory])
        except OSError as error:
            self._directory_failed(effect.directory, error)
        else:
            self.handle(events.LogsChanged(directory=effect.directory, refused=refused))

    def _enqueue(self, directory: str, change: Callable[[], Awaitable[None]]) -> None:
        waiting = self._changes.get(directory)
        if waiting is not None:
            waiting.append(change)
        else:
            self._changes[directory] = deque((change,))
            self._begin(self._run_queue(directory))

    async def _run_queue(self, directory: str) -> None:
        waiting = self._changes[directory]
        while waiting and directory not in self._failed:
            await waiting.popleft()()
        del self._changes[directory]
        self._replacing.pop(directory, None)

    def _clean(self, effect: effects.Clean) -> None:
        if effect.directory not in self._failed:
            self._begin(self._compact(effect))

    async def _compact(self, effect: effects.Clean) -> None:
        try:
            cleaned = await self._cleaners.clean(effect, self._disks[effect.directory])
        except OSError as error:
            self._directory_failed(effect.directory, error)
            cleaned = events.Cleaned(partition=effect.partition)
        self.handle(cleaned)

    def _scrub(self, effect: effects.Scrub) -> None:
        if effect.directory not in self._failed:
            self._begin(self._scrub_segment(effect))

    async def _scrub_segment(self, effect: effects.Scrub) -> None:
        try:
            scrubbed = await self._cleaners.scrub(effect, self._disks[effect.directory])
        except OSError as error:
            self._directory_failed(effect.directory, error)
            scrubbed = events.Scrubbed(partition=effect.partition)
        self.handle(scrubbed)

    async def _act(self, directory: str, act: Callable[[], None]) -> None:
        try:
            await self._in_thread(act)
        except OSError as error:
            self._directory_failed(directory, error)

    def _directory_failed(self, directory: str, error: OSError) -> None:
        if directory not in self._failed:
            self._failed.add(directory)
            self.handle(events.DirectoryFailed(directory=directory, reason=str(error)))

    def measure(self) -> None:
        """Reports free space now, and from a thread every ``SPACE_INTERVAL_S``."""
        for directory, disk in self._disks.items():
            try:
                self._measured(directory, _space(disk))
            except OSError as error:
                self._directory_failed(directory, error)
        self._measuring = self._loop.call_later(SPACE_INTERVAL_S, self._measure_again)

    def _measure_again(self) -> None:
        self._begin(self._measure())
        self._measuring = self._loop.call_later(SPACE_INTERVAL_S, self._measure_again)

    async def _measure(self) -> None:
        for directory, disk in self._disks.items():
            if directory not in self._failed:
                try:
                    self._measured(directory, await self._in_thread(_space, disk))
                except OSError as error:
                    self._directory_failed(directory, error)

    def _measured(self, directory: str, space: tuple[int, int]) -> None:
        self.handle(events.SpaceMeasured(directory=directory, free_bytes=space[0], total_bytes=space[1]))

    # The store, other brokers, the process

    def _store_submit(self, effect: effects.StoreSubmit) -> None:
        ticket, began_ns = effect.ticket, monotonic_ns()

        def done(result: StoreResult) -> None:
            self._counters.store_times.observe(monotonic_ns() - began_ns)
            self.handle(events.StoreAnswered(ticket=ticket, result=result))

        self._session.submit(effect.ops, done)

    def _send_to_peer(self, effect: effects.PeerRequest) -> None:
        def answered(message: Any) -> None:
            self._loop.call_soon(self._peer_answered, effect.ticket, message)

        self._peers.send(effect.broker, effect.message, effect.api_version, answered)

    def _peer_answered(self, ticket: int, message: Any) -> None:
        self.handle(events.PeerAnswered(ticket=ticket, message=message))

    def _halt(self, effect: effects.Halt) -> None:
        self._halted(effect.reason)

    # Threads

    def _in_thread(self, act: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        return self._loop.run_in_executor(self._executor, act, *args)

    def _begin(self, work: Any) -> None:
        task: asyncio.Task[None] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._crashed(error)


def _read_slices(partitions: list[PartitionData]) -> None:
    for data in partitions:
        assert isinstance(data.records, Slice), "only file ranges are read"
        data.records = data.records.read()


def _remove_all(disk: Disk, paths: Iterable[str]) -> None:
    for path in paths:
        disk.remove_tree(path)


def _replace_all(disk: Disk, files: Mapping[str, bytes]) -> None:
    """A full disk, or too few descriptors, keeps the old files, which stay valid. Raises: OSError."""
    for path, data in files.items():
        try:
            disk.replace_file(path, data)
        except OSError as error:
            if error.errno not in (ENOSPC, EMFILE, ENFILE):
                raise


def _space(disk: Disk) -> tuple[int, int]:
    return disk.free_bytes(), disk.total_bytes()


def _write_back(descriptor: int, position: int, size: int) -> None:
    """Starts the kernel's writeback; waits only for room in the device's queue. Closes the descriptor."""
    try:
        if _SYNC_FILE_RANGE is not None:
            _SYNC_FILE_RANGE(descriptor, position, size, SYNC_FILE_RANGE_WRITE)
    finally:
        os.close(descriptor)


def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """The Linux system call, which Python does not offer; None elsewhere."""
    call = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is not None:
        call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
        call.restype = ctypes.c_int
    return call


_SYNC_FILE_RANGE = _sync_file_range()
