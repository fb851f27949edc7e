"""A live server is sent bursts of requests with hostile structure, and mutated bytes: each is answered or its connection closed.

``chaos.fuzz`` makes the frames. ``tests/broker/test_broker_fuzz.py`` sends more of them to brokers in its own process. `OTTLA_FUZZ_FRAMES`
makes this longer, `OTTLA_FUZZ_SEED` different; a failure names the seed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from chaos.fuzz.environment import expected_of
from chaos.fuzz.mutations import tokens
from chaos.fuzz.oracle import Finding
from chaos.fuzz.secured import Secured, check_unauthenticated, frame_of, prepare, whole_frame
from chaos.fuzz.sockets import SETTINGS, FuzzedServer, check_log, plain

from ottla.broker.apis import HANDLERS
from ottla.wire import framing
from ottla.wire.compile import encode
from ottla.wire.messages import API
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.metadata import MetadataRequest, MetadataResponse
from ottla.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.wire.messages.sasl_handshake import SaslHandshakeRequest
from plain_kafka import api_versions
from random_messages import random_message
from serving import Serving

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

#: Inputs of a broker with TLS and SASL.
SECURED = int(os.environ.get("OTTLA_FUZZ_SECURED", "6000"))
FRAMES = int(os.environ.get("OTTLA_FUZZ_FRAMES", "20000"))
SEED = int(os.environ.get("OTTLA_FUZZ_SEED", "1"))
#: Frames to warm up, after which memory is measured.
WARM = 4_000
#: Request memory, fetch answers and all that Python keeps for itself; far below what one believed length could cost.
GROWTH_BYTES_MAX = 150 << 20


def tracebacks(data_dir: Path) -> str:
    """What failed inside of the server, from its flight records."""
    failures = [json.loads(path.open().readline()) for path in sorted(data_dir.glob("flight-*.jsonl"))]
    return "\n".join("".join(failure["traceback"]) for failure in failures)


def test_tokens_are_what_the_codec_writes() -> None:
    random = Random(SEED)
    for key, api in API.items():
        for version in range(max(api.versions[0], 3 if key == 0 else 0), api.versions[1] + 1):
            message = random_message(api.request, version, random)
            assert b"".join(token.data for token in tokens(message, version)) == encode(message, version), f"{api.name} v{version}"


def test_bursts_of_hostile_requests_leave_the_server_as_it_was(tmp_path: Path) -> None:
    with Serving(tmp_path / "data", settings=SETTINGS) as server:
        # AlterPartition and Envelope are for brokers; what speaks of a quorum has no meaning here; nothing moves between directories.
        assert api_versions(server.address).keys() == API.keys() - {34, 55, 56, 58, 64}, "all that is declared is served"
        assert HANDLERS.keys() <= API.keys()
        pid = server.pid
        fuzzed = FuzzedServer(plain(lambda: server.address), SEED)
        try:
            fuzzed.run(WARM)
            before = server.resident_bytes()
            fuzzed.run(FRAMES - WARM)
        except (Finding, OSError) as finding:
            said = f"{server.logs()[-3000:]}\n{tracebacks(server.data_dir)}"
            raise AssertionError(f"OTTLA_FUZZ_SEED={SEED}, {fuzzed.frames} frames: {finding}\n{said}") from finding
        assert server.alive and server.pid == pid
        assert server.resident_bytes() < before + GROWTH_BYTES_MAX
        check_log(server.logs())
        assert fuzzed.answers > FRAMES // 3
        server.stop()
        server.start()
        fuzzed.client.read(0)
        fuzzed.client.look_up()
        check_log(server.logs())


def test_hostile_inputs_in_front_of_tls_and_sasl_and_behind_them_leave_the_server_as_it_was(tmp_path: Path) -> None:
    config, tls, clear = prepare(tmp_path)
    with Serving(tmp_path / "data", arguments=["--config", str(config)], listen=False) as server:
        pid = server.pid
        fuzzed = Secured(tls, clear, tmp_path / "tls", SEED)
        try:
            fuzzed.run(SECURED // 2)
            before = server.resident_bytes()
            fuzzed.run(SECURED - SECURED // 2)
        except (Finding, OSError) as finding:
            said = f"{server.logs()[-3000:]}\n{tracebacks(server.data_dir)}"
            raise AssertionError(f"OTTLA_FUZZ_SEED={SEED}, {fuzzed.inputs} inputs: {finding}\n{said}") from finding
        assert server.alive and server.pid == pid
        assert server.resident_bytes() < before + GROWTH_BYTES_MAX
        check_log(server.logs())
        assert all(fuzzed.counts.values())
        assert fuzzed.answers > fuzzed.counts["sasl"] // 10, "exchanges get beyond their first request"


@pytest.mark.parametrize(
    ("request_sent", "response", "problem"),
    [
        (MetadataRequest(topics=[]), MetadataResponse(), "an answer to a client that is not authenticated"),
        (SaslAuthenticateRequest(auth_bytes=b"\0good\0wrong"), SaslAuthenticateResponse(), "authenticated without a right password"),
    ],
)
def test_a_client_that_is_let_in_without_a_password_is_a_finding(request_sent: Any, response: Any, problem: str) -> None:
    frame = frame_of(request_sent, 2, 1_000)
    received = b"".join(cast(list[bytes], framing.encode_response(response, 2, 1_000)))
    with pytest.raises(Finding, match=problem):
        check_unauthenticated(received, [expected_of(frame)], [frame])


def test_an_empty_token_after_an_old_handshake_is_a_finding() -> None:
    frames = [frame_of(SaslHandshakeRequest(mechanism="PLAIN"), 0, 1_000), b"\0\0\0\1x"]
    with pytest.raises(Finding, match="an authentication that succeeded"):
        check_unauthenticated(b"\0\0\0\0", [expected_of(frame) for frame in frames], frames)


def test_a_string_that_the_codec_refuses_is_sent_in_front_of_sasl_too() -> None:
    named = ApiVersionsRequest(client_software_name="n" * 66_000, client_software_version="1")
    frame = whole_frame(18, 3, named, 1_000)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert b"n" * 66_000 in frame
    short = ApiVersionsRequest(client_software_name="n", client_software_version="1")
    assert whole_frame(18, 3, short, 1_000) == frame_of(short, 3, 1_000)
