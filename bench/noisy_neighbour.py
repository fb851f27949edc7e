"""`python -m bench.noisy_neighbour`: latency of well-behaved clients beside one that sends or fetches 20 times its quota.

The probe is that of `bench.topic_storm`: a Produce (acks=all, one record of 1 KiB) and a Fetch every 50 ms, each on its own connection. The
noisy client has one connection with five Produce requests of 64 KiB in flight, or one Fetch of 1 MiB, and offers 20 times its quota. It
does not wait for the end of a throttle time by itself: the broker mutes it.

    alone           the probe alone
    produce, fetch  beside the noisy client without a quota, for comparison
    ... quota       beside it with a quota; the first 15 s do not count, since the quota of the window may be used at once

The targets: beside the throttled client the p99 of the probe is at most 1.5 times that of the probe alone, and the rate of the noisy client
is within 5 % of its quota.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from bench import probe
from bench.frames import batch_of, fetch_frame, produce_frame, stamp
from bench.topic_storm import PROBE_TOPIC, create, percentiles, probing, serving
from ottla import Admin
from ottla.base.units import KiB, MiB
from ottla.results import QuotaEntity

NOISY_TOPIC = "noisy"
CLIENT = b"noisy"
#: Where a frame of `bench.frames` has the client id "bench".
CLIENT_AT = 14
OFFERED = 20
WARM_UP_S = 15.0
IN_FLIGHT = 5
TARGET_RATIO, TARGET_RATE = 1.5, 0.05


def main_of_client(kind: str, host: str, port: int, offered: float) -> None:
    """Offers `offered` bytes per second until it is killed; prints a line of JSON for each answer: time, and bytes."""
    size = 64 * KiB
    if kind == "produce":
        batch = batch_of(KiB, size).data
        frame, depth, moved = produce_frame(NOISY_TOPIC, [0], batch, acks=1), IN_FLIGHT, len(batch)
    else:
        frame, depth, moved = fetch_frame(NOISY_TOPIC, {0: 0}, partition_bytes_max=MiB, bytes_max=MiB, wait_ms=0), 1, MiB
    frame[CLIENT_AT : CLIENT_AT + len(CLIENT)] = CLIENT
    with socket.create_connection((host, port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        due, sent, answered = time.monotonic(), 0, 0
        while True:
            while sent - answered < depth:
                # What it could not send while it was muted is not sent later.
                due = max(due, time.monotonic() - 0.1) + moved / offered
                time.sleep(max(due - time.monotonic(), 0))
                sent += 1
                stamp(frame, sent)
                sock.sendall(frame)
            reply = probe.receive(sock)
            answered += 1
            print(json.dumps([time.monotonic(), moved if kind == "produce" else len(reply)]), flush=True)


@contextmanager
def noisy(kind: str, bootstrap: str, offered: float, output: Path) -> Iterator[None]:
    """The noisy client as a child process."""
    command = [sys.executable, "-m", "bench.noisy_neighbour", "--client", kind, "--bootstrap", bootstrap, "--offered", str(offered)]
    with output.open("wb") as lines, subprocess.Popen(command, stdout=lines) as process:
        try:
            yield
        finally:
            process.kill()


def rate_of(output: Path, began: float, ended: float) -> float:
    """Bytes per second between two times. A throttled Fetch has no records."""
    rows = [json.loads(line) for line in output.read_text().splitlines() if line.endswith("]")]
    moved: float = sum(size for at, size in rows if began <= at < ended and size > KiB)
    return moved / (ended - began)


def measured(directory: Path, seconds: float, quota: int) -> dict[str, Any]:
    """Latencies of the probe in each phase, and rates of the noisy client."""
    outcome: dict[str, Any] = {"quota": quota, "seconds": seconds}
    phases: dict[str, tuple[float, float]] = {}
    with serving(directory, "served", None) as bootstrap, Admin(bootstrap_servers=bootstrap) as admin:
        create(bootstrap, [PROBE_TOPIC, NOISY_TOPIC])
        with probing(bootstrap) as running:
            time.sleep(2)
            phases["alone"] = (time.monotonic(), time.monotonic() + seconds)
            time.sleep(seconds)
            for kind, key in (("produce", "producer_byte_rate"), ("fetch", "consumer_byte_rate")):
                for limited in (False, True):
                    name = f"{kind} quota" if limited else kind
                    if limited:
                        done = admin.alter_client_quotas({QuotaEntity(client_id=CLIENT.decode()): {key: quota}})
                        assert all(one is None for one in done.values()), done
                    output = directory / f"{name}.jsonl"
                    with noisy(kind, bootstrap, OFFERED * quota, output):
                        time.sleep(WARM_UP_S)
                        phases[name] = (time.monotonic(), time.monotonic() + seconds)
                        time.sleep(seconds)
                    outcome[name] = {"bytes_per_s": round(rate_of(output, *phases[name]))}
    for phase, (began, ended) in phases.items():
        for kind in ("produce", "fetch"):
            rows = [row[2] for row in running.measured if row[0] == kind and began <= row[1] < ended]
            outcome.setdefault(phase, {})[f"{kind}_ms"] = percentiles(rows)
    return outcome


def verdict(outcome: dict[str, Any]) -> list[str]:
    """A line for each target."""
    lines = []
    for phase in ("produce quota", "fetch quota"):
        off = outcome[phase]["bytes_per_s"] / outcome["quota"] - 1
        lines.append(f"{phase}: rate {off:+.1%} of the quota: {'met' if abs(off) <= TARGET_RATE else 'missed'}")
        for kind in ("produce_ms", "fetch_ms"):
            ratio = outcome[phase][kind]["p99"] / outcome["alone"][kind]["p99"]
            lines.append(f"{phase}: p99 of {kind.removesuffix('_ms')} {ratio:.2f} times: {'met' if ratio <= TARGET_RATIO else 'missed'}")
    return lines


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seconds", default=60.0, show_default=True, help="Seconds of each phase.")
@click.option("--quota", default=MiB, show_default=True, help="Bytes per second.")
@click.option("--directory", type=click.Path(file_okay=False, exists=True, path_type=Path), help="Where data is kept for the time.")
@click.option("--client", hidden=True)
@click.option("--bootstrap", hidden=True)
@click.option("--offered", type=float, hidden=True)
def main(seconds: float, quota: int, directory: Path | None, client: str | None, bootstrap: str | None, offered: float | None) -> None:
    """Measure the latency of clients beside one that is far above its quota."""
    if client is not None and bootstrap is not None and offered is not None:
        host, _, port = bootstrap.rpartition(":")
        main_of_client(client, host, int(port), offered)
        return
    with tempfile.TemporaryDirectory(prefix="ottla-noisy-", dir=directory, ignore_cleanup_errors=True) as made:
        outcome = measured(Path(made), seconds, quota)
    click.echo(json.dumps(outcome, indent=1))
    click.echo("\n".join(verdict(outcome)))


if __name__ == "__main__":
    main()
