"""Rebalances of a consumer group: their duration, and their effect on other clients.

The members are a separate process (`group_members`). A load of 1,000 requests a second (`requests.steady`) runs alternately
while the group is stable, and while a member joins, leaves and rejoins, from the first request to the last. The median turn counts, so
a short disturbance of the machine affects one turn and no figure.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from bench import load
from bench.load import ROOT, Window

REQUEST, RATE, CONNECTIONS = "produce acks=1", 1000.0, 10
#: Number of turns with the steady load, stable and rebalancing.
TURNS = 3


class Members:
    """The process with the members, and its commands."""

    def __init__(self, **arguments: Any) -> None:
        command = [sys.executable, "-m", "bench.loads.group_members", json.dumps(arguments)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()

    def do(self, command: str) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None, "it was started with pipes"
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the members ended with code {self._process.wait()} at {command!r}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def rebalance(
    host: str, port: int, pid: int, topic: str, *, protocol: str, members: int, partitions: int, other_topic: str, steady_s: float
) -> dict[str, Any]:
    """Form a group, then let one more member join and leave. With `steady_s`, repeatedly, with the latencies of other clients."""

    def steady() -> dict[str, Any]:
        shape = {"request": REQUEST, "connections": CONNECTIONS, "rate": RATE, "seconds": steady_s}
        return load.run("steady", host=host, port=port, pid=pid, topic=other_topic, **shape)

    moves = MembershipTimes([], [])
    before, during, accounts = [], [], []
    with Members(host=host, port=port, topic=topic, partitions=partitions, protocol=protocol) as group:
        formed = group.do(f"form {members}")
        if not steady_s:
            moves.add(group)
        for _ in range(TURNS if steady_s else 0):
            before.append(steady())
            window = Window(pid)
            window.open()
            during.append(moves.beside(group, steady))
            accounts.append(window.close())
        group.do("close")
    return {
        **{name: sum(account[name] for account in accounts) for name in ("seconds", "server_cpu_s", "load_cpu_s")},
        "form_s": formed["seconds"],
        "joins_s": moves.joins,
        "leaves_s": moves.leaves,
        "join_s": statistics.median(moves.joins),
        "leave_s": statistics.median(moves.leaves),
        "worst_s": max(moves.joins + moves.leaves),
        "fenced": moves.fenced,
        "before": before,
        "during": during,
    }


@dataclass(slots=True)
class MembershipTimes:
    """Durations of joins and leaves, in seconds."""

    joins: list[float]
    leaves: list[float]
    fenced: int = 0

    def add(self, group: Members) -> None:
        self.joins.append(group.do("join")["seconds"])
        last = group.do("leave")
        self.leaves.append(last["seconds"])
        self.fenced = last["fenced"]

    def beside(self, group: Members, steady: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Join and leave continuously while the steady load runs."""
        with ThreadPoolExecutor(1) as thread:
            beside = thread.submit(steady)
            while not beside.done():
                self.add(group)
            return beside.result()


def median_ms(turns: list[dict[str, Any]], percentile: str) -> float:
    """A percentile of the median turn."""
    return float(statistics.median(turn[f"{percentile}_ms"] for turn in turns))
