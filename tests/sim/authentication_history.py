"""One simulated history of authentication: clients with and without the right password send all kinds of requests in any order.

One broker behind the server's own ``Authenticator``, with PLAIN, whose steps run in threads in half of the histories. A client does not
wait for answers, so that requests arrive while a step is performed, and after a failure. Sessions end after a second in half of the
histories; some clients authenticate again in time, some too late, and some as another user. The broker is killed once.

The model of what a client may do sees only what the client sends::

    HANDSHAKE ── handshake ──▶ EXCHANGE ── right password ──▶ SESSION of the user ── handshake, if sessions end ──▶ EXCHANGE
        │ anything else but ApiVersions    │ anything else
        ▼                                  ▼
      OVER: nothing has an effect any more

The invariants, checked at every step of the broker and in its log at the end:

    a request but ApiVersions that was sent outside of a session reaches no step, and writes nothing
    a request has the principal of its session's user
    no request is served after its session's end
"""

from dataclasses import dataclass
from typing import Any

from ottla.base.units import KiB
from ottla.broker import effects, events
from ottla.broker.node import Node
from ottla.net.authenticator import Authenticator
from ottla.net.connection_context import AuthenticationLimits
from ottla.net.sasl.authentication import API_VERSIONS
from ottla.net.sasl.mechanism import ServerMechanism
from ottla.net.sasl.plain import PlainServer
from ottla.records.build import build_batch
from ottla.sim.client_connection import RETRY_MS, VERSIONS
from ottla.sim.disk import SimDisk
from ottla.sim.history import read_log
from ottla.sim.machine import Machine, Process
from ottla.sim.memory_environment import AtOnce
from ottla.sim.network import Connection, Network
from ottla.sim.world import EPOCH_MS, World
from ottla.store.memory import MemoryStore
from ottla.wire import errors, framing
from ottla.wire.messages import (
    ApiVersionsRequest,
    CreatableTopic,
    CreateTopicsRequest,
    MetadataRequest,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from ottla.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from ottla.wire.messages.sasl_handshake import SaslHandshakeRequest

TOPIC, MECHANISM = "private", "PLAIN"
PASSWORDS = {"alice": "a-secret", "bob": "b-secret"}
READY_MS, RUN_MS, SETTLED_MS = 10_000, 15_000, 10_000
#: Clients at a time.
CLIENTS = 6
SESSION_MS, FAILURE_DELAY_MS = 1_000, 100
#: Longest time from sending the last token to the begin of the session: latency, thread, and a kill's disk time.
SLACK_MS = 250
LIMITS = AuthenticationLimits(frame_bytes_max=64 * KiB, timeout_ms=2_000)
VERSION_OF: dict[type[Any], int] = {ApiVersionsRequest: 3, MetadataRequest: 12, SaslHandshakeRequest: 1, SaslAuthenticateRequest: 2}
#: What clients send, and how often.
KINDS = ("versions", "handshake", "right", "wrong", "other", "produce", "create", "metadata")
WEIGHTS = (1, 5, 5, 1, 1, 6, 1, 2)


class SlowPlain(PlainServer):
    """Verifies in a thread, as mechanisms do that ask an identity provider."""

    slow = True


class Users:
    """The broker's credentials and mechanisms."""

    enabled = (MECHANISM,)

    def __init__(self, kind: type[PlainServer], session_ms: int) -> None:
        self._kind = kind
        self._session_ms = session_ms

    def open(self, mechanism: str) -> ServerMechanism:
        return self._kind(self)

    def max_reauth_ms(self, mechanism: str) -> int:
        return self._session_ms

    def password(self, user: str) -> str | None:
        return PASSWORDS.get(user)

    def scram(self, mechanism: Any, user: str) -> None:
        return None

    def token(self, mechanism: Any, token_id: str) -> None:
        return None


@dataclass(slots=True)
class Permitted:
    """What a request may do that was sent in a session."""

    user: str
    #: The last ms at which it may be served; None: sessions do not end.
    until_ms: int | None


class Model:
    """What one connection may do, by what its client sent."""

    def __init__(self, session_ms: int) -> None:
        self._session_ms = session_ms
        self._state = "HANDSHAKE"
        self._session: Permitted | None = None
        self._handshakes = 0

    def sent(self, kind: str, user: str, now_ms: int) -> Permitted | None:
        """The client sends a request of a kind; what it may do."""
        state, session = self._state, self._session
        if state == "SESSION" and not (kind == "handshake" and self._session_ms):
            return session
        if state == "HANDSHAKE" and kind == "handshake":
            self._state = "EXCHANGE"
        elif state == "SESSION":
            self._handshakes += 1
            # A second one soon after the first is a request of the session; then a token is, too.
            self._state = "EXCHANGE" if self._handshakes == 1 else "OVER"
        elif state == "EXCHANGE" and kind == "right" and (session is None or session.user == user):
            until_ms = now_ms + SLACK_MS + self._session_ms if self._session_ms else None
            self._state, self._session = "SESSION", Permitted(user, until_ms)
        elif state != "HANDSHAKE" or kind != "versions" or session is not None:
            self._state = "OVER"
        # After a second one it may be renewed or not.
        return Permitted(session.user, None) if session is not None and self._handshakes > 1 else None


class AuthenticationChecker:
    """Compares what reaches the broker with what was permitted."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        #: By connection and correlation id.
        self.permitted: dict[tuple[int, int], Permitted | None] = {}
        #: Produce requests that were acknowledged, and requests that were sent outside of a session; both must happen.
        self.served = self.refused = 0

    def inspect(self, node: Node, event: events.Event, requested: list[effects.Effect], now_ms: int) -> None:
        """The broker took a step."""
        if isinstance(event, events.RequestArrived) and event.origin.host and event.api_key != API_VERSIONS:
            self._arrived(event, now_ms)
        for effect in requested:
            if isinstance(effect, effects.Respond) and effect.call is not None and isinstance(effect.call.body, ProduceRequest):
                codes = [one.error_code for topic in effect.message.responses for one in topic.partition_responses]
                self.served += errors.NONE in codes

    def _arrived(self, event: events.RequestArrived[Any], now_ms: int) -> None:
        permitted = self.permitted.get((event.connection, event.correlation_id))
        what = f"request {event.api_key} of connection {event.connection}"
        if permitted is None:
            self.problems.append(f"{what} was served before it was authenticated")
        elif event.origin.principal != f"User:{permitted.user}":
            self.problems.append(f"{what} was served as {event.origin.principal} instead of {permitted.user}")
        elif permitted.until_ms is not None and now_ms > permitted.until_ms:
            self.problems.append(f"{what} was served {now_ms - permitted.until_ms} ms after its session's end")


class AuthenticationHistory:
    """One history."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.rng = self.world.rng("authentication")
        self.network = Network(self.world)
        self.checker = AuthenticationChecker()
        self._session_ms = self.rng.choice((0, SESSION_MS))
        self._users = Users(self.rng.choice((PlainServer, SlowPlain)), self._session_ms)
        disk = SimDisk(now_ms=lambda: self.world.now_ms)
        self.machine = Machine(self.world, MemoryStore(), disk, {"ottla.disk.reserve.bytes": "65536"})
        self.machine.inspects = lambda node, event, requested: self.checker.inspect(node, event, requested, self.world.now_ms)
        self.machine.handler = self._handler
        self.machine.authentication = LIMITS
        self._numbers = 0
        self._ends_ms = 0

    def _handler(self, process: Process) -> Authenticator:
        return Authenticator(
            process.shell,
            self._users,
            executor=AtOnce(),
            traffic=process.context.traffic,
            failure_delay_ms=lambda: FAILURE_DELAY_MS,
            wall_ms=self.machine.wall_ms,
        )

    def run(self) -> AuthenticationChecker:
        """Runs the history, until its first problem; returns the checker."""
        self.machine.start()
        assert self.world.run(READY_MS, lambda: self._led() or self._create()), "the topic is created"
        self._ends_ms = self.world.now_ms + RUN_MS
        for _ in range(CLIENTS):
            self._connect()
        self.world.after(self.rng.randint(1_000, RUN_MS - 5_000), self._crash)
        if not self.world.run(self._ends_ms + SETTLED_MS, lambda: bool(self.checker.problems)):
            self._read_logs()
        self.world.end()
        return self.checker

    def _read_logs(self) -> None:
        node = self.machine.node
        assert node is not None, "the broker runs"
        for leader in node.partitions.leaders.values():
            for offset, value in read_log(leader.log):
                if value != b"permitted":
                    self.checker.problems.append(f"the record at {offset} was written by a client that was not authenticated")

    def _led(self) -> bool:
        return self.machine.node is not None and bool(self.machine.node.partitions.leaders)

    def _create(self) -> bool:
        if self.world.now_ms % 500 == 0:
            self._script(["handshake", "right", "create"], pause_ms=(0,))
        return False

    def _crash(self) -> None:
        self.machine.kill()
        self.world.after(self.rng.randint(100, 1_000), self.machine.start)

    def _connect(self) -> None:
        """Begins a connection, and another one some time after its end."""
        if self.world.now_ms >= self._ends_ms:
            return
        kinds: list[str] = self.rng.choices(KINDS, WEIGHTS, k=self.rng.randint(1, 10))
        if self.rng.random() < 0.6:
            # An orderly begin.
            kinds = ["handshake", "right", "produce", *kinds]
        duration_ms = self._script(kinds, pause_ms=self.rng.choice(((0,), (0, 1, 5, 50), (50, 300, 700))))
        self.world.after(duration_ms + RETRY_MS, self._connect)

    def _script(self, kinds: list[str], *, pause_ms: tuple[int, ...]) -> int:
        """Sends requests of these kinds on a new connection; returns when it closes the connection, in ms."""
        connection = self.network.connect(self.machine, on_frame=lambda frame: None, on_close=lambda: None)
        if connection is None:
            return 0
        model, user = Model(self._session_ms), self.rng.choice(list(PASSWORDS))
        at_ms = 0
        for kind in kinds:
            at_ms += self.rng.choice(pause_ms)
            self.world.after(at_ms, lambda kind=kind: self._send(connection, model, kind, user))  # type: ignore[misc]
        self.world.after(at_ms + 500, connection.close)
        return at_ms + 500

    def _send(self, connection: Connection, model: Model, kind: str, user: str) -> None:
        other = next(name for name in PASSWORDS if name != user)
        sender = other if kind == "other" else user
        permitted = model.sent("right" if kind == "other" else kind, sender, self.world.now_ms)
        self._numbers += 1
        self.checker.permitted[connection.number, self._numbers] = permitted
        self.checker.refused += permitted is None
        message = self._request(kind, sender, permitted=permitted is not None)
        kind_of: type[Any] = type(message)
        version = VERSION_OF[kind_of] if kind_of in VERSION_OF else VERSIONS[kind_of]
        chunks = framing.encode_request(message, version, self._numbers, "client")
        connection.send(b"".join(bytes(chunk) for chunk in chunks)[framing.SIZE_BYTES :])  # type: ignore[arg-type]

    def _request(self, kind: str, user: str, *, permitted: bool) -> Any:
        match kind:
            case "versions":
                return ApiVersionsRequest(client_software_name="sim", client_software_version="1")
            case "handshake":
                return SaslHandshakeRequest(mechanism=MECHANISM)
            case "right" | "other":
                return SaslAuthenticateRequest(auth_bytes=f"\0{user}\0{PASSWORDS[user]}".encode())
            case "wrong":
                return SaslAuthenticateRequest(auth_bytes=f"\0{user}\0guess".encode())
            case "produce":
                value = b"permitted" if permitted else b"refused"
                data = build_batch([(EPOCH_MS + self.world.now_ms, b"k", value, ())])
                part = PartitionProduceData(index=0, records=data)
                return ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=[TopicProduceData(name=TOPIC, partition_data=[part])])
            case "create":
                topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)
                return CreateTopicsRequest(topics=[topic], timeout_ms=1_000)
        return MetadataRequest()
