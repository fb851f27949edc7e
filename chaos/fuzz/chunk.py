"""One chunk: frames generated from one seed, sent to fresh brokers, with a well-behaved client in between, and checks at the end.

A chunk is a list of steps. Generating them needs the responses, from which the vocabulary learns; performing them again needs only the
list. So a failing list can be shortened and performed again without its seed.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from types import FrameType
from typing import Any

from chaos.fuzz.client import GOOD_TOPIC, HOT_TOPICS, RETRIABLE, Client, create_topics
from chaos.fuzz.environment import Connection, Environment, expected_of
from chaos.fuzz.mutations import mutated_frame, plain_frame
from chaos.fuzz.oracle import Expected, Finding
from chaos.fuzz.requests import Requests
from chaos.fuzz.vocabulary import Topic, Vocabulary
from ottla.base.ids import TopicPartition
from ottla.wire import framing
from ottla.wire.declare import FieldNotInVersion
from ottla.wire.messages import API

FRAMES = 1_000
CONNECTIONS = 6
#: Share of frames whose bytes are mutated.
MUTATED = 0.1
#: Number of frames between two runs of the well-behaved client.
CLIENT_EVERY = 50
SETTINGS: Mapping[str, str] = {
    "ottla.partitions.max": "200", "ottla.partitions.per.request.max": "20", "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "50", "group.min.session.timeout.ms": "500", "log.retention.check.interval.ms": "1000",
    "group.consumer.session.timeout.ms": "3000", "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "500", "group.consumer.min.heartbeat.interval.ms": "500",
    "max.incremental.fetch.session.cache.slots": "20", "log.cleaner.backoff.ms": "200", "log.segment.delete.delay.ms": "100",
}  # fmt: skip
CLIENT_IDS = (None, "", "fuzz\0", "größe" * 20, "i" * 32_767)
RETRIES = 100
RETRY_MS = 100
#: Requests with timeouts up to this one must complete within it; the rest of the time is for the session timeouts of members.
WAIT_MS = 60_000
REST_MS = 200_000
#: CPU time limit of a chunk; it normally takes less than half a second.
CHUNK_S = 20.0

#: ("frame", connection, bytes, expected) | ("run", steps) | ("drain",) | ("time", ms) | ("close", connection) | ("client",)
Step = tuple[Any, ...]


class ChunkContext:
    """Brokers, the well-behaved client, and the hostile connections by number."""

    def __init__(self, brokers: int, learn: Callable[[int, Any, Any], None]) -> None:
        self._learn = learn
        self._brokers = brokers
        #: Responses that the client waits for, by correlation id.
        self._waits: dict[int, Any] = {}
        self._open: dict[int, Connection] = {}
        self.environment = Environment(brokers, SETTINGS, answered=self._answered)
        create_topics(self, replicas=min(brokers, 3))
        self.client = Client(self)
        self.client.work()

    @property
    def wall_ms(self) -> int:
        return self.environment.wall_ms

    def _answered(self, expected: Expected, answer: Any) -> None:
        if id(expected.request) in self._waits:
            self._waits[id(expected.request)] = answer
        elif expected.request is not None:
            self._learn(expected.key, expected.request, answer)

    def ask(self, request: Any, version: int, *, until: Callable[[Any], int], leader: bool = False) -> Any:
        """Send a request of the client; repeat it at another broker while the response has a retriable error. Raises: Finding."""
        key = next(key for key, api in API.items() if api.request is type(request))
        frame = b"".join(framing.encode_request(request, version, 7, "client"))  # type: ignore[arg-type]
        answer: Any = None
        for attempt in range(RETRIES):
            broker_id = self._leader() if leader else 1 + attempt % self._brokers
            connection = self.environment.connect(broker_id)
            self._waits[id(request)] = None
            connection.receive(frame, Expected(key, version, 7, request))
            self.environment.drain()
            if self._waits[id(request)] is None:
                self.environment.pass_ms(2_000)
            answer = self._waits.pop(id(request))
            connection.broker.client_closed(connection)
            if answer is not None and until(answer) == 0:
                return answer
            if answer is not None and until(answer) not in RETRIABLE:
                raise Finding(f"client: {API[key].name} fails", f"{answer}")
            self.environment.pass_ms(RETRY_MS)
        raise Finding(f"client: {API[key].name} does not succeed", f"{RETRIES} attempts, last {answer}")

    def _leader(self) -> int:
        for broker_id, broker in self.environment.brokers.items():
            if TopicPartition(GOOD_TOPIC, 0) in broker.node.partitions.leaders:
                return broker_id
        return 1

    def perform(self, step: Step) -> None:
        """Perform one step. Raises: Finding."""
        match step:
            case ("frame", int() as number, bytes() as frame, Expected() as expected):
                self._connection(number).receive(frame, expected)
            case ("run", int() as steps):
                self.environment.run(steps)
            case ("drain",):
                self.environment.drain()
            case ("time", int() as duration_ms):
                self.environment.pass_ms(duration_ms)
            case ("close", int() as number):
                connection = self._open.pop(number, None)
                if connection is not None:
                    connection.broker.client_closed(connection)
            case ("client",):
                self.environment.drain()
                self.client.work()
            case _:
                raise AssertionError(f"{step[0]} is no step")

    def _connection(self, number: int) -> Connection:
        connection = self._open.get(number)
        if connection is None or connection.closed is not None:
            connection = self._open[number] = self.environment.connect(1 + number % self._brokers)
        return connection

    def end(self, *, cleanly: bool) -> None:
        """Check what must hold after the last request. Raises: Finding."""
        environment = self.environment
        environment.drain()
        self.client.work()
        environment.pass_ms(REST_MS)
        for connection in self._open.values():
            for expected, _ in connection.in_work.values():
                if connection.closed is None and expected.request is not None and _max_wait_ms(expected.request) <= WAIT_MS:
                    raise Finding(f"{expected.name}: never answered", expected.description)
        for connection in self._open.values():
            connection.broker.client_closed(connection)
        environment.drain()
        environment.pass_ms(1_000)
        for broker in environment.brokers.values():
            node = broker.node
            context = node.context
            left: dict[str, Collection[Any]] = {
                "requests": [number for number in context._delayed_of if number >= 0],
                "forwarded": [one for one, _ in context._peer_waits.values() if one.call is not None],
                "store": context._store_waits,
                "reads": context._log_waits,
                "flushes": environment.slow,
            }
            if any(left.values()):
                raise Finding("something is left", str({name: len(waits) for name, waits in left.items()}))
        environment.restart(cleanly=cleanly)
        environment.pass_ms(10_000)
        self.client.read(0)
        self.client.look_up()


def _max_wait_ms(request: Any) -> int:
    """How long a request may wait by its own timeouts; groups have their members' timeouts."""
    names = ("max_wait_ms", "timeout_ms", "session_timeout_ms", "rebalance_timeout_ms")
    return max((value if value >= 0 else 1 << 31 for name in names if (value := getattr(request, name, 0))), default=0)


@dataclass(slots=True)
class ChunkResult:
    """The result of one chunk."""

    seed: int
    frames: int = 0
    answers: int = 0
    seconds: float = 0.0
    finding: Finding | None = None
    steps: list[Step] = field(default_factory=list)


class Chunk:
    """Generates the steps of one seed, using the brokers' responses."""

    def __init__(self, seed: int, *, brokers: int, frames: int = FRAMES) -> None:
        self.seed = seed
        self.brokers = brokers
        self.frames = frames
        self._random = random = Random(seed)
        self.vocabulary = Vocabulary(random, topics=[Topic(name, bytes(16), 1) for name in HOT_TOPICS], brokers=brokers)
        self._wall_ms: Callable[[], int] = int
        self.requests = Requests(random, self.vocabulary, wall_ms=lambda: self._wall_ms())
        self._connections = list(range(CONNECTIONS))
        self._next = CONNECTIONS
        self._correlation = 0

    def run(self) -> ChunkResult:
        """Send the frames of this seed to fresh brokers."""
        outcome = ChunkResult(self.seed)
        begun = time.process_time()
        try:
            with watchdog():
                context = ChunkContext(self.brokers, self.vocabulary.learn)
                self._wall_ms = lambda: context.environment.wall_ms
                for step in self._steps():
                    outcome.steps.append(step)
                    outcome.frames += step[0] == "frame"
                    context.perform(step)
                outcome.answers = sum(broker.answers for broker in context.environment.brokers.values())
                context.end(cleanly=self.seed % 2 == 0)
        except Finding as finding:
            outcome.finding = finding
        outcome.seconds = time.process_time() - begun
        return outcome

    def _steps(self) -> Iterator[Step]:
        random, sent, due = self._random, 0, CLIENT_EVERY
        while sent < self.frames:
            draw = random.random()
            if draw < 0.9:
                number = self._connections[int(random.random() * CONNECTIONS)]
                burst = 1 if random.random() < 0.7 else random.randint(2, 8)
                for _ in range(burst):
                    yield self._frame(number)
                sent += burst
                if random.random() < 0.6:
                    yield ("run", random.choice((1, 3, 10, 40)))
            elif draw < 0.94:
                yield ("drain",)
            elif draw < 0.97:
                yield ("time", random.choice((1, 10, 60, 200, 1_000, 4_000)))
            else:
                at = int(random.random() * CONNECTIONS)
                yield ("close", self._connections[at])
                self._connections[at] = self._next = self._next + 1
            if sent >= due:
                due += CLIENT_EVERY
                yield ("client",)

    def _frame(self, number: int) -> Step:
        self._correlation += 1
        key, version, request = self.requests.request()
        if self._random.random() < MUTATED:
            # On a separate connection, since most of them end it.
            self._next += 1
            frame = mutated_frame(key, version, request, self._correlation, self._random)
            return ("frame", self._next, frame, expected_of(frame))
        client = CLIENT_IDS[int(self._random.random() * len(CLIENT_IDS))] if self._random.random() < 0.05 else "fuzz"
        try:
            frame = b"".join(framing.encode_request(request, version, self._correlation, client))  # type: ignore[arg-type]
        except FieldNotInVersion:
            # A compact string above Kafka's limit: only written by hand, and refused.
            frame = plain_frame(key, version, request, self._correlation)
            return ("frame", number, frame, expected_of(frame))
        return ("frame", number, frame, Expected(key, version, self._correlation, request))


@contextlib.contextmanager
def watchdog(seconds: float = CHUNK_S) -> Iterator[None]:
    """Raise a Finding if a chunk uses too much CPU time: an endless step blocks all clients of a broker."""

    def stuck(number: int, frame: FrameType | None) -> None:
        names: list[str] = []
        while frame is not None and len(names) < 8:
            names.append(f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {frame.f_code.co_name}")
            frame = frame.f_back
        raise Hang("\n".join(names))

    former = signal.signal(signal.SIGVTALRM, stuck)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    except Hang as error:
        raise Finding("a step does not end", str(error)) from None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, former)


class Hang(BaseException):
    """A BaseException, so that no handler of the broker catches it."""


def perform(steps: list[Step], *, brokers: int, seed: int) -> Finding | None:
    """Perform a list of steps on fresh brokers; returns the finding."""
    try:
        with watchdog():
            context = ChunkContext(brokers, lambda key, request, answer: None)
            for step in steps:
                context.perform(step)
            context.end(cleanly=seed % 2 == 0)
    except Finding as finding:
        return finding
    return None


def shrunk(outcome: ChunkResult, *, brokers: int, seconds: float = 60.0) -> list[Step]:
    """Shorten the steps: remove ever smaller parts while the same finding remains, within a time limit."""
    assert outcome.finding is not None, "there is something to shrink"
    steps, wanted = outcome.steps, outcome.finding.signature
    deadline = time.monotonic() + seconds
    size = max(1, len(steps) // 2)
    while time.monotonic() < deadline:
        at, shorter = 0, False
        while at < len(steps) and time.monotonic() < deadline:
            without = steps[:at] + steps[at + size :]
            found = perform(without, brokers=brokers, seed=outcome.seed)
            if found is not None and found.signature == wanted:
                steps, shorter = without, True
            else:
                at += size
        if size == 1 and not shorter:
            break
        size = max(1, size // 2)
    return steps
