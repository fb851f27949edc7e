"""Replays a flight record in a process of its own: `ottla sim replay --steps`, limited in time, memory and output.

The console does not import the simulator: a replay runs the broker's code on requests that made it fail, and may compute for long.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec

TIMEOUT_S = 60.0
#: Address space of the process, and its output.
MEMORY_BYTES, OUTPUT_BYTES_MAX = 2 << 30, 32 << 20
STDERR_BYTES_MAX = 64 << 10
#: Steps that are kept.
STEPS_MAX = 20_000


class ReplayStep(msgspec.Struct, frozen=True):
    """A step of the simulated broker: an event and the effects that it asked for."""

    number: int
    at_ms: int
    event: str
    fields: Any
    effects: list[tuple[str, Any]]


class Replayed(msgspec.Struct, frozen=True):
    """The result. `story`: the last lines of the command, with the failure if it happened again."""

    steps: list[ReplayStep]
    story: str
    problem: str = ""


async def replay(path: Path) -> Replayed:
    """Runs the command; a failure of the command is in the result."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ottla", "sim", "replay", "--steps", "--memory", str(MEMORY_BYTES), str(path),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None, "both are pipes"
    problem = ""
    output = errors = b""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            output, errors = await asyncio.gather(_limited(process.stdout, OUTPUT_BYTES_MAX), _limited(process.stderr, STDERR_BYTES_MAX))
            if len(output) <= OUTPUT_BYTES_MAX:
                await process.wait()
            else:
                problem = f"the steps have more than {OUTPUT_BYTES_MAX >> 20} MiB; the first ones are shown"
    except TimeoutError:
        problem = f"the replay did not end in {TIMEOUT_S:.0f} s"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    steps = await asyncio.to_thread(_steps, output)
    story = errors.decode("utf-8", "replace").strip()
    if not problem and process.returncode not in (0, 1):
        problem = f"the replay ended with code {process.returncode}"
    return Replayed(steps, story, problem)


async def _limited(stream: asyncio.StreamReader, most: int) -> bytes:
    """Reads up to the end, or until there is more than `most`."""
    parts: list[bytes] = []
    size = 0
    while size <= most and (part := await stream.read(1 << 16)):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _steps(output: bytes) -> list[ReplayStep]:
    decoder = msgspec.json.Decoder(ReplayStep)
    steps = []
    for line in output.splitlines()[:STEPS_MAX]:
        try:
            steps.append(decoder.decode(line))
        except msgspec.MsgspecError:
            # The last line of a replay that was stopped.
            break
    return steps
