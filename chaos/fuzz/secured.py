"""`python -m chaos.fuzz.secured`: hostile inputs for a broker with TLS, SASL and access rules, in three stages.

::

    tls            bytes before and in the handshake, and records after it
    sasl           frames and tokens of a client that is not authenticated
    authenticated  the frames of ``sockets.py``, of users with all rights and with none, inside of TLS and SASL

What must hold: each connection is answered or closed; before authentication only ApiVersions, SaslHandshake and SaslAuthenticate have
answers; a client that never sent a right password is not authenticated; a well-behaved client works; the process stays, bounded in memory,
without a traceback in its log.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import os
import resource
import socket
import ssl
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import click

from chaos.cluster import Process, free_port
from chaos.fuzz.environment import expected_of
from chaos.fuzz.mutations import mutated_frame, plain_frame
from chaos.fuzz.oracle import Expected, Finding, check_answer
from chaos.fuzz.requests import Requests
from chaos.fuzz.sockets import SETTINGS, Address, FuzzedServer, check_log
from chaos.fuzz.vocabulary import Topic, Vocabulary
from chaos.namespaces import Location
from ottla.base.jaas import login_module_text
from ottla.net.tls.authority import Authority
from ottla.wire import framing
from ottla.wire.declare import FieldNotInVersion
from ottla.wire.messages import API
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.metadata import MetadataRequest
from ottla.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.wire.messages.sasl_handshake import SaslHandshakeRequest

STAGES = ("tls", "sasl", "authenticated")
#: Inputs of a stage before the next one has a turn.
TURN = 2_000
#: The well-behaved client and a user with all rights; a user without rights. The right passwords occur in no hostile input.
PASSWORDS = {"good": "the-good-ones", "fuzz": "of-the-fuzzer", "none": "without-rights"}
HANG_S = 15.0
API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 17, 36
BEFORE = (API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE)
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "", "plain", "x" * 32_767, "\0")
#: Share of the connections of a stage that use TLS where it is not the subject: it costs most of the time.
TLS_SHARE = 0.1
#: The server's first message in SCRAM, and its error in OAUTHBEARER; other tokens without an error end an exchange with success.
CHALLENGES = (b"r=", b"{")
#: First correlation id of a connection; mutated headers have others.
FIRST = 1_000
#: Correlation id of the request that no unauthenticated client gets an answer to.
LAST = 77_777


def listeners(directory: Path, tls: int, clear: int, *, clear_protocol: str, module: str) -> dict[str, str]:
    """Settings of a listener TLS with SASL_SSL and a listener CLEAR, at these ports; ``module`` has the users of PLAIN at TLS."""
    return {
        "listeners": f"TLS://127.0.0.1:{tls},CLEAR://127.0.0.1:{clear}",
        "listener.security.protocol.map": f"TLS:SASL_SSL,CLEAR:{clear_protocol}",
        "inter.broker.listener.name": "TLS",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.tls.plain.sasl.jaas.config": module,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(directory / "tls" / "127.0.0.1.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(directory / "tls" / "ca.pem"),
    }


def settings(directory: Path, tls: int, clear: int) -> dict[str, str]:
    """Settings of a broker with all of it, and two ports. ``prepare`` writes the files."""
    users = {f"user_{name}": password for name, password in PASSWORDS.items()}
    module = login_module_text("PLAIN", {"username": "good", "password": PASSWORDS["good"], **users})
    return {
        **SETTINGS,
        **listeners(directory, tls, clear, clear_protocol="SASL_PLAINTEXT", module=module),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.clear.plain.sasl.jaas.config": module,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:good;User:fuzz",
        # Otherwise guesses wait most of the time.
        "connection.failed.authentication.delay.ms": "1",
        "sasl.oauthbearer.jwks.endpoint.url": (directory / "jwks.json").as_uri(),
        "sasl.oauthbearer.expected.issuer": "https://issuer.example",
        "sasl.oauthbearer.expected.audience": "kafka",
    }


def prepare(directory: Path) -> tuple[Path, Address, Address]:
    """Writes certificates and a properties file; returns the latter, and the addresses of both listeners."""
    now = datetime.datetime.now(datetime.UTC)
    tls = directory / "tls"
    Authority.create(tls, "fuzz", now=now).issue("127.0.0.1", ["127.0.0.1"], now=now)
    (directory / "jwks.json").write_text(
        '{"keys":[{"kty":"oct","kid":"1","alg":"HS256","k":"' + base64.b64encode(bytes(32)).decode() + '"}]}'
    )
    path = directory / "server.properties"
    ports = free_port(), free_port()
    path.write_text("".join(f"{name}={value}\n" for name, value in settings(directory, *ports).items()))
    return path, ("127.0.0.1", ports[0]), ("127.0.0.1", ports[1])


class Secured:
    """A broker of ``settings`` under test."""

    def __init__(self, tls: Address, clear: Address, certificates: Path, seed: int) -> None:
        """Addresses of both listeners, and the directory of the authority."""
        self.random = random = Random(seed)
        self._tls, self._clear = tls, clear
        self.counts = dict.fromkeys(STAGES, 0)
        #: Answers to clients that were not authenticated.
        self.answers = 0
        self._context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
        self.behind = FuzzedServer(self._authenticated, seed)
        words = Vocabulary(random, topics=[Topic("hot-1", bytes(16), 1)], brokers=1)
        self._requests = Requests(random, words, wall_ms=lambda: time.time_ns() // 1_000_000)

    @property
    def inputs(self) -> int:
        return sum(self.counts.values())

    def run(self, inputs: int, stages: Sequence[str] = STAGES, *, check: Callable[[], None] = lambda: None) -> None:
        """Send this number of inputs, by turns in each stage. ``check`` raises Finding if the process is harmed. Raises: Finding."""
        target, turn = self.inputs + inputs, min(TURN, -(-inputs // len(stages)))
        while self.inputs < target:
            for stage in stages:
                self._turn(stage, min(turn, target - self.inputs))
                check()

    def _turn(self, stage: str, inputs: int) -> None:
        if inputs <= 0:
            return
        if stage == "authenticated":
            before = self.behind.frames
            self.behind.run(inputs)
            self.counts[stage] += self.behind.frames - before
            return
        target = self.counts[stage] + inputs
        while self.counts[stage] < target:
            self.counts[stage] += self._attack_tls() if stage == "tls" else self._attack_sasl()
        self.behind.client.work()

    # Behind TLS and SASL.

    def _authenticated(self, good: bool) -> socket.socket:
        return authenticated(self._open(True), "good" if good else "fuzz" if self.random.random() < 0.7 else "none")

    def _open(self, encrypted: bool) -> socket.socket:
        sock = socket.create_connection(self._tls if encrypted else self._clear, timeout=HANG_S)
        return self._context.wrap_socket(sock, server_hostname="127.0.0.1") if encrypted else sock

    # In front of TLS, and in it.

    @cached_property
    def _hello(self) -> bytes:
        """The first flight of a client."""
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = self._context.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        return to_server.read()

    def _attack_tls(self) -> int:
        """One connection; returns its inputs."""
        random = self.random
        with socket.create_connection(self._tls, timeout=HANG_S) as sock:
            try:
                draw = random.random()
                if draw < 0.8:
                    sock.sendall(mutated_bytes(self._hello, random))
                else:
                    self._shake(sock, finish=draw >= 0.9)
                socket.socket.shutdown(sock, socket.SHUT_WR)
                drained(sock)
            except TimeoutError:
                raise Finding("TLS: neither answered nor closed", "") from None
            except OSError:
                # The server closed it with bytes unread, so the kernel reset the connection.
                pass
        return 1

    def _shake(self, sock: socket.socket, *, finish: bool) -> None:
        """A handshake whose second flight, or with ``finish`` a record after it, is mutated."""
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = self._context.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
        for _ in range(10):
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                sock.sendall(to_server.read())
                if not (data := sock.recv(65536)):
                    return
                to_client.write(data)
        if finish:
            sock.sendall(to_server.read())
            client.write(frame_of(MetadataRequest(topics=[]), 9, 1))
        sock.sendall(mutated_bytes(to_server.read(), self.random))

    # In front of SASL.

    def _attack_sasl(self) -> int:
        """One connection with some frames; returns their number."""
        random = self.random
        frames, whole = self._exchange()
        expected = [expected_of(frame) for frame in frames]
        received = bytearray()
        with self._open(random.random() < TLS_SHARE) as sock:
            try:
                for frame in frames[:whole]:
                    sock.sendall(frame)
                    if not receive_frame(sock, received):
                        break
                sock.sendall(b"".join(frames[whole:]))
                socket.socket.shutdown(sock, socket.SHUT_WR)
                received += drained(sock)
            except TimeoutError:
                raise Finding("SASL: neither answered nor closed", " ".join(frame[:200].hex() for frame in frames)) from None
            except OSError:
                # The server closed it with bytes unread, so the kernel reset the connection.
                pass
        self.answers += check_unauthenticated(received, expected, frames)
        return len(frames)

    def _exchange(self) -> tuple[list[bytes], int]:
        """Frames of a connection, and how many of them are whole: each of these is answered, or ends the connection."""
        random = self.random
        mechanism = random.choice(MECHANISMS[:4] if random.random() < 0.9 else MECHANISMS)
        version = random.randint(0, 1)
        versions = ApiVersionsRequest(client_software_name="f", client_software_version="1")
        steps: list[tuple[int, int, Any]] = [(API_VERSIONS, random.randint(0, 5), versions) for _ in range(random.choice((0, 1, 2)))]
        steps.append((SASL_HANDSHAKE, version, SaslHandshakeRequest(mechanism=mechanism)))
        tokens = [SaslAuthenticateRequest(auth_bytes=self._token(mechanism)) for _ in range(random.choice((1, 1, 2, 3)))]
        steps += [(SASL_AUTHENTICATE, random.randint(0, 2), request) for request in tokens]
        if random.random() < 0.1:
            random.shuffle(steps)
        steps = steps[: random.randint(1, len(steps))]
        if random.random() < 0.1:
            steps.append(self._requests.request())
        raw = False
        frames = []
        for number, (key, request_version, request) in enumerate(steps):
            if raw and key == SASL_AUTHENTICATE:
                frames.append(struct.pack(">i", len(request.auth_bytes)) + request.auth_bytes)
            else:
                frames.append(whole_frame(key, request_version, request, FIRST + number) if key in BEFORE else b"")
            raw = raw or (key == SASL_HANDSHAKE and request_version == 0)
        whole = len(frames) if random.random() < 0.4 else random.randrange(len(frames))
        if b"" in frames:
            whole = min(whole, frames.index(b""))
        for number in range(whole, len(frames)):
            frames[number] = mutated_frame(*steps[number], FIRST + number, random)
        frames.append(frame_of(MetadataRequest(topics=[]), 9, LAST))
        return frames, whole

    def _token(self, mechanism: str) -> bytes:
        """A token, mostly of the mechanism, often mutated; never with a right password."""
        random = self.random
        if random.random() < 0.2:
            mechanism = random.choice(MECHANISMS[:4])
        user = random.choice(("good", "fuzz", "none", "nobody", "", "a=2Cb", "é"))
        nonce = base64.b64encode(random.randbytes(18)).decode()
        claims = (
            base64.urlsafe_b64encode(random.choice((b'{"alg":"none"}', b'{"alg":"HS256","kid":"1"}', b"[]", b"{"))).decode().rstrip("=")
        )
        text = random.choice(
            {
                "PLAIN": (f"\0{user}\0wrong", f"other\0{user}\0wrong", f"\0{user}\0", f"\0{user}\0wrong\0", ""),
                "OAUTHBEARER": (
                    f"n,,\1auth=Bearer {claims}.{claims}.x\1\1", f"n,a={user},\1auth=Bearer {'a' * 5000}\1\1",
                    "n,,\1auth=Bearer ..\1\1", "\1",
                ),
            }.get(mechanism)
            or (
                f"n,,n={user},r={nonce}", f"n,,n={user},r={nonce},tokenauth=true", f"n,a=x,n={user},r={nonce}", f"y,,n={user},r={nonce}",
                f"c=biws,r={nonce},p={nonce}", f"n,,n={user},r={'r' * 60_000}",
            )
        )  # fmt: skip
        token = text.encode()
        return mutated_bytes(token, random) if random.random() < 0.3 else token


def whole_frame(key: int, version: int, request: Any, correlation_id: int) -> bytes:
    """A frame with all bytes of the request, also where the codec refuses it, as a string above Kafka's limit."""
    try:
        return frame_of(request, version, correlation_id)
    except FieldNotInVersion:
        return plain_frame(key, version, request, correlation_id)


def frame_of(request: object, version: int, correlation_id: int) -> bytes:
    return b"".join(map(bytes, framing.encode_request(request, version, correlation_id, "fuzz")))  # type: ignore[arg-type]


def mutated_bytes(data: bytes, random: Random) -> bytes:
    """The bytes with some changes: flipped, removed, repeated, cut off, lengths at their limits; or other bytes."""
    made = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(made) + 1)
        match random.randrange(9):
            case 0:
                del made[at : at + random.choice((1, 2, 16, 1000))]
            case 1:
                made[at:at] = made[: random.choice((1, 5, 100, 1000))] * random.choice((1, 2, 20))
            case 2:
                del made[at:]
            case 3:
                made[at : at + 2] = random.choice((b"\xff\xff", b"\0\0", b"\x7f\xff", b"\x80\0"))
            case 4:
                made[3:5] = random.choice((b"\xff\xff", b"\0\0", b"\x40\0", b"\x40\x01"))
            case 5:
                made += random.choice(
                    (b"\x15\x03\x03\0\2\2\x46", b"\x14\x03\x03\0\1\1" * 40, b"\x17\x03\x03\0\0" * 40, random.randbytes(200))
                )
            case 6:
                made[:0] = random.choice((b"GET / HTTP/1.1\r\n", b"\0\0\0\x10", b"\x80\x2e\1\0\2", random.randbytes(5)))
            case _:
                for _ in range(random.randint(1, 8)):
                    if made:
                        made[random.randrange(len(made))] ^= 1 << random.randrange(8)
    return bytes(made)


def receive_frame(sock: socket.socket, received: bytearray) -> bool:
    """Receive one more frame; False if the connection ends first. Raises: OSError."""
    start = len(received)
    while len(received) < start + 4 or len(received) < start + 4 + struct.unpack_from(">i", received, start)[0]:
        data = sock.recv(1 << 16)
        if not data:
            return False
        received += data
    return True


def drained(sock: socket.socket) -> bytes:
    """All bytes until the other side closes. Raises: OSError."""
    received = bytearray()
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline:
        try:
            data = sock.recv(1 << 16)
        except ssl.SSLEOFError:
            data = b""
        if not data:
            return bytes(received)
        received += data
    raise TimeoutError("the connection stays open")


def check_unauthenticated(received: bytes | bytearray, expected: Sequence[Expected], frames: Sequence[bytes]) -> int:
    """Check the answers to a client that is not authenticated; returns their number. Raises: Finding."""
    shown = " ".join(frame[:300].hex() for frame in frames)
    # Mutated headers may have the correlation id of another frame.
    candidates = [one for one in expected if one.key in BEFORE and one.correlation_id != LAST]
    # After SaslHandshake 0 answers have no header.
    raw = any(one.key == SASL_HANDSHAKE and one.version == 0 for one in expected)
    position = answers = 0
    while position + 4 <= len(received):
        (size,) = struct.unpack_from(">i", received, position)
        payload = received[position + 4 : position + 4 + size]
        position += 4 + size
        if len(payload) < size:
            break
        answers += 1
        if raw:
            if not payload:
                raise Finding("SASL: an empty token is an authentication that succeeded", shown)
            continue
        (correlation_id,) = struct.unpack_from(">i", payload)
        about = next((one for one in candidates if one.correlation_id == correlation_id), None)
        if about is None:
            raise Finding("SASL: an answer to a client that is not authenticated", f"{payload[:100].hex()}\n{shown}")
        candidates = candidates[candidates.index(about) + 1 :]
        answer = check_answer(about, payload)
        if isinstance(answer, SaslAuthenticateResponse) and answer.error_code == 0 and not bytes(answer.auth_bytes).startswith(CHALLENGES):
            raise Finding("SASL: authenticated without a right password", f"{answer}\n{shown}")
    return answers


def authenticated(sock: socket.socket, user: str) -> socket.socket:
    """The connection after SASL PLAIN. Raises: Finding."""
    token = f"\0{user}\0{PASSWORDS[user]}".encode()
    for request, version in ((SaslHandshakeRequest(mechanism="PLAIN"), 1), (SaslAuthenticateRequest(auth_bytes=token), 2)):
        sock.sendall(frame_of(request, version, 1))
        data = bytearray()
        while len(data) < 4 or len(data) < 4 + struct.unpack_from(">i", data)[0]:
            got = sock.recv(65536)
            if not got:
                raise Finding("client: its connection is closed during authentication", f"{user}, {len(data)} bytes came")
            data += got
        key = SASL_HANDSHAKE if version == 1 else SASL_AUTHENTICATE
        answer: Any = framing.decode_response(API[key].response, memoryview(data)[4:], version)[1]
        if answer.error_code:
            raise Finding("client: it is not authenticated", f"{answer}")
    return sock


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--inputs", type=click.IntRange(1), default=100_000, show_default=True, help="Inputs to send.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of the inputs.")
@click.option("--stage", "stages", type=click.Choice(STAGES), multiple=True, default=STAGES, help="Stages; repeatable. Default: all.")
def main(inputs: int, seed: int, stages: tuple[str, ...]) -> None:
    """Send hostile inputs to a broker with TLS, SASL and access rules.

    Exit code 1: there is a finding.
    """
    with tempfile.TemporaryDirectory(prefix="ottla-fuzz-") as name:
        directory = Path(name)
        config, tls, clear = prepare(directory)
        arguments = ["serve", "--data-dir", str(directory / "data"), "--config", str(config)]
        process = Process(Location("here"), arguments, directory / "output")
        process.spawn()
        try:
            process.await_ready()
            secured = Secured(tls, clear, directory / "tls", seed)
            sys.exit(0 if attack(process, secured, inputs, stages) else 1)
        finally:
            process.kill()


def attack(process: Process, secured: Secured, inputs: int, stages: Sequence[str]) -> bool:
    """Send the inputs and report each half minute. Returns whether nothing was found."""
    begun = shown = time.monotonic()
    peak = 0

    def check() -> None:
        nonlocal shown, peak
        if not process.alive:
            raise Finding("the server ended", process.output_text()[-4000:])
        check_log(process.output_text())
        peak = max(peak, resident_bytes(process.pid))
        if time.monotonic() - shown > 30:
            shown = time.monotonic()
            click.echo(report())

    def report() -> str:
        counts = ", ".join(f"{stage} {count:,}" for stage, count in secured.counts.items())
        answers = secured.answers + secured.behind.answers
        rate = secured.inputs / (time.monotonic() - begun)
        return f"{secured.inputs:,} inputs ({counts}), {answers:,} answers, {rate:,.0f}/s, {peak >> 20} MiB"

    try:
        secured.run(inputs, stages, check=check)
    except (Finding, OSError) as finding:
        click.echo(f"{report()}\n{finding!r}\n{process.output_text()[-3000:]}")
        return False
    click.echo(f"{report()}, nothing found")
    return True


if __name__ == "__main__":
    os.environ.setdefault("OTTLA_LOG", "warning")
    main()
