"""CPU time of one small Produce request inside the broker's state machine: no socket, no codec, no real disk.

    python bench/step_produce.py [--path SRC] [--path OTHER_SRC] [--rounds N]

Each ``--path`` is a directory with a package ``ottla``. The rounds of two trees alternate, in separate processes. The minimum
of each, which is least disturbed by other load, is printed with the ratio. A request is one batch of ten records of 100 bytes; with
acks=-1 it waits for the flush that follows.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

REQUESTS = 4_000
WARM = 500


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--path", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--measure", action="store_true", help="measure this process's ottla and print microseconds per request")
    options = parser.parse_args()
    if options.measure:
        print(*(f"{measured(acks):.2f}" for acks in (1, -1)))
        return
    paths = options.path or [str(Path(__file__).parent.parent / "src")]
    found: dict[str, list[list[float]]] = {path: [] for path in paths}
    for _ in range(options.rounds):
        for path in paths:
            command = [sys.executable, __file__, "--measure"]
            run = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=True, capture_output=True, text=True)
            found[path].append([float(part) for part in run.stdout.split()])
    for place, name in enumerate(("acks=1", "acks=-1")):
        least = [min(row[place] for row in rows) for rows in found.values()]
        ratio = f", ratio {least[1] / least[0]:.3f}" if len(least) > 1 else ""
        print(f"{name}: {', '.join(f'{time_us:.1f} us' for time_us in least)} per request{ratio}")


def measured(acks: int) -> float:
    """Microseconds of CPU for a request, with all its steps."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "broker"))
    from cluster import Cluster, batch

    from ottla.base.ids import ConnectionId
    from ottla.broker import effects, events
    from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

    cluster = Cluster()
    broker = cluster.topic("t")
    node, disk = broker.node, next(iter(broker.disks.values()))
    records = batch(*(b"x" * 100 for _ in range(10)))
    spent = 0
    for number in range(REQUESTS + WARM):
        data = [PartitionProduceData(index=0, records=memoryview(bytearray(records)))]
        body = ProduceRequest(
            transactional_id=None, acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=data)]
        )
        call = events.RequestArrived(
            connection=ConnectionId(number + 1_000_000), correlation_id=1, api_key=0, api_version=9, client_id="bench", body=body, ticket=1
        )
        begun = time.process_time_ns()
        asked = node.step(call, 0)
        taken = time.process_time_ns() - begun
        if any(isinstance(effect, effects.ScheduleFlush) for effect in asked):
            begun = time.process_time_ns()
            asked = node.step(events.FlushDue(), 0)
            taken += time.process_time_ns() - begun
            for flush in asked:
                assert isinstance(flush, effects.Flush)
                for partition, plan in flush.plans:
                    plan.carry_out(disk)
                    begun = time.process_time_ns()
                    node.step(events.Flushed(marks=((partition, plan.upto),)), 0)
                    taken += time.process_time_ns() - begun
        if number >= WARM:
            spent += taken
    return spent / REQUESTS / 1000


if __name__ == "__main__":
    main()
