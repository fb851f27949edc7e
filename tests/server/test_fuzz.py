"""A live server is sent bursts of requests with hostile structure, and mutated bytes: each is answered or its connection closed.

``chaos.fuzz`` makes the frames. ``tests/broker/test_broker_fuzz.py`` sends more of them to brokers in its own process. `OTTLA_FUZZ_FRAMES`
makes this longer, `OTTLA_FUZZ_SEED` different; a failure names the seed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random

import pytest
from chaos.fuzz.mutations import tokens
from chaos.fuzz.oracle import Finding
from chaos.fuzz.sockets import SETTINGS, FuzzedServer, check_log

from ottla.broker.apis import HANDLERS
from ottla.wire.compile import encode
from ottla.wire.messages import API
from plain_kafka import api_versions
from random_messages import random_message
from serving import Serving

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

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
        fuzzed = FuzzedServer(lambda: server.address, SEED)
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
