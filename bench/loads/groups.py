"""Rebalances of a consumer group: how long one takes, and what other clients feel of it.

The members are a process of their own (`group_members`). Beside it a load of 1,000 requests a second (`requests.steady`) runs twice: while
the group is settled, and while a member joins, leaves, joins again, from the first request to the last.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
from types import TracebackType
from typing import Any, Self

from bench import load
from bench.load import ROOT, Window

REQUEST, RATE, CONNECTIONS = "produce acks=1", 1000.0, 10
#: Joins, and as many leaves, of a run that measures no latency.
TURNS = 2


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
    """Forms a group, then has one more member join and leave again and again. With `steady_s`, latencies of others before and during."""
    joins: list[float] = []
    leaves: list[float] = []

    def steady() -> dict[str, Any]:
        shape = {"request": REQUEST, "connections": CONNECTIONS, "rate": RATE, "seconds": steady_s}
        return load.run("steady", host=host, port=port, pid=pid, topic=other_topic, **shape)

    with Members(host=host, port=port, topic=topic, partitions=partitions, protocol=protocol) as group:
        formed = group.do(f"form {members}")
        before = steady() if steady_s else None
        during: list[dict[str, Any]] = []
        beside = threading.Thread(target=lambda: during.append(steady()), daemon=True)
        window = Window(pid)
        window.open()
        if steady_s:
            beside.start()
        while len(joins) < TURNS or beside.is_alive():
            joins.append(group.do("join")["seconds"])
            last = group.do("leave")
            leaves.append(last["seconds"])
        account = window.close()
        group.do("close")
    if steady_s and not during:
        raise RuntimeError("the steady load beside the rebalances failed")
    return {
        **account,
        "form_s": formed["seconds"],
        "joins_s": joins,
        "leaves_s": leaves,
        "join_s": statistics.median(joins),
        "leave_s": statistics.median(leaves),
        "worst_s": max(joins + leaves),
        "fenced": last["fenced"],
        "before": before,
        "during": during[0] if during else None,
    }
