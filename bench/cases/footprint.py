"""Start time and memory of a server: on an empty directory, and after all the other cases."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from bench.cases import Case, CaseContext, Figure, Measurement, Scale
from bench.process import MIB

IDLE_S = 2.0
START = (
    Figure("until first answer", "s", False),
    Figure("until ready line", "s", False),
    Figure("idle RSS", "MiB", False, 0),
    Figure("idle CPU", "% of a core", False, 1),
)
AFTER = (Figure("RSS", "MiB", False, 0), Figure("PSS", "MiB", False, 0), Figure("USS", "MiB", False, 0))


def first_cases(scale: Scale) -> list[Case]:
    return [Case("start", "empty data directory", START, _start, frozenset({"ottla", "kafka"}), rounds=scale.starts)]


def last_cases(scale: Scale) -> list[Case]:
    return [Case("memory", "after load", AFTER, _after_load, rounds=1)]


def _start(context: CaseContext, scale: Scale) -> Measurement:
    with tempfile.TemporaryDirectory(dir=context.scratch) as directory, context.contestant.running(Path(directory)) as running:
        process = running.process
        time.sleep(1.0)
        cpu_s = process.cpu_s()
        time.sleep(IDLE_S)
        idle = (process.cpu_s() - cpu_s) / IDLE_S * 100
        memory = process.memory()
        figures = {
            "until first answer": process.first_answer_s,
            "until ready line": process.ready_s,
            "idle RSS": memory.rss / MIB,
            "idle CPU": idle,
        }
        return Measurement(figures, {"rss": memory.rss, "pss": memory.pss, "uss": memory.uss})


def _after_load(context: CaseContext, scale: Scale) -> Measurement:
    memory = context.running.process.memory()
    return Measurement({"RSS": memory.rss / MIB, "PSS": memory.pss / MIB, "USS": memory.uss / MIB}, {})
