"""How producers end: at interpreter exit, on Ctrl-C, after a fork, on garbage collection. Each in its own process with an in-memory
cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.server
HERE = Path(__file__).parent
HEAD = """
import asyncio, os, sys, threading, time
import ottla.client.transport.network
from memory_cluster import MemoryCluster
from ottla.records.read import records

cluster = MemoryCluster()
cluster.create("t")
ottla.client.transport.network.open_connection = cluster.connect

def silent():
    # The broker takes requests and does not answer.
    cluster.nodes[1].up = False

def stored():
    return [record[3] for batch in cluster.logs["t"][0].batches for record in records(batch)]

from ottla import Producer
import ottla.client.sync.loop_thread
"""


def process(script: str) -> subprocess.Popen[str]:
    """A Python process that runs the script with an in-memory cluster."""
    source = str(HERE.parents[1] / "src")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([source, str(HERE)])}
    return subprocess.Popen(
        [sys.executable, "-c", HEAD + textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def outcome(script: str) -> tuple[int, str, str]:
    """(exit code, standard output, standard error) of a script that ends by itself."""
    running = process(script)
    try:
        out, err = running.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        running.kill()
        raise
    return running.returncode, out, err


# -- interpreter exit


def test_queued_records_are_sent_at_interpreter_exit() -> None:
    code, out, err = outcome(
        """
        import atexit
        atexit.register(lambda: print(len(stored())))       # runs after the producer's own
        atexit.unregister(ottla.client.sync.loop_thread._close_all)
        atexit.register(ottla.client.sync.loop_thread._close_all)
        producer = Producer(bootstrap_servers="boot:1", linger_ms=10_000)
        for number in range(1000):
            producer.send("t", b"%d" % number)
        """
    )
    assert (code, out.strip(), err) == (0, "1000", "")


def test_unsent_records_at_interpreter_exit_are_reported() -> None:
    code, _, err = outcome(
        """
        ottla.client.sync.loop_thread.EXIT_TIMEOUT_MS = 100
        producer = Producer(bootstrap_servers="boot:1", linger_ms=10_000)
        producer.send("t", b"a")
        silent()
        producer.send("t", b"b")
        """
    )
    assert code == 0
    assert "2 records for t-0 may be lost: the producer was closed before they were acknowledged" in err


def test_records_refused_at_interpreter_exit_are_reported() -> None:
    _, _, err = outcome(
        """
        cluster.batch_faults.append(lambda topic, partition, header: 87)
        producer = Producer(bootstrap_servers="boot:1", linger_ms=10_000)
        producer.send("t", b"a")
        """
    )
    assert "1 records for t-0 may be lost: they failed while the interpreter ended: t-0 at node1:9092" in err


def test_exit_waits_for_threads_that_still_send() -> None:
    code, out, err = outcome(
        """
        import atexit
        atexit.unregister(ottla.client.sync.loop_thread._close_all)
        atexit.register(lambda: print(len(stored())))
        atexit.register(ottla.client.sync.loop_thread._close_all)
        producer = Producer(bootstrap_servers="boot:1")
        def send():
            for number in range(50):
                producer.send("t", b"x")
                time.sleep(0.005)
        threading.Thread(target=send).start()
        """
    )
    assert (code, out.strip(), err) == (0, "50", "")


def test_a_garbage_collected_asyncio_producer_reports_unsent_records() -> None:
    code, _, err = outcome(
        """
        from ottla.aio import Producer
        async def main():
            producer = Producer(bootstrap_servers="boot:1", linger_ms=10_000)
            await producer.send("t", b"a")
        asyncio.run(main())
        """
    )
    assert code == 0
    assert "1 records for t-0 may be lost: its producer was thrown away without being closed" in err


# -- Ctrl-C

WAITS = {
    "send, for metadata": "silent(); producer.send('t', b'x')",
    "send, for memory": "fill(); producer.send('t', b'x')",
    "result": "fill()[-1].result()",
    "flush": "fill(); producer.flush()",
    "close": "fill(); producer.close()",
    "partitions_for": "silent(); producer.partitions_for('other')",
}


@pytest.mark.parametrize("waits", WAITS.values(), ids=WAITS)
def test_ctrl_c_interrupts_every_blocking_call_at_once(waits: str) -> None:
    running = process(
        f"""
        with Producer(bootstrap_servers="boot:1", buffer_memory=2048, linger_ms=0) as producer:
            def fill():
                producer.partitions_for("t")
                silent()
                return [producer.send("t", b"x" * 500) for _ in range(4)]
            try:
                threading.Timer(0.2, lambda: print("waits", flush=True)).start()
                {waits}
                print("did not wait")
            except KeyboardInterrupt:
                print("interrupted", flush=True)
                raise
        """
    )
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == "waits\n"
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=20)
    finally:
        running.kill()
    assert out == "interrupted\n", err
    assert running.returncode in (1, -signal.SIGINT, 130)


# -- forks


def test_after_a_fork_the_childs_producer_refuses_and_the_parents_continues() -> None:
    code, out, err = outcome(
        """
        producer = Producer(bootstrap_servers="boot:1", linger_ms=10_000)
        delivery = producer.send("t", b"parent")
        with producer._lock:                      # as if another thread were in the middle of a send
            child = os.fork()
        if not child:
            def report_error(call):
                try:
                    call()
                except Exception as error:
                    print(type(error).__name__, "made before the process forked" in str(error), flush=True)
            report_error(lambda: producer.send("t", b"child"))
            report_error(lambda: producer.send("t", b"child", partition=7))
            report_error(producer.flush)
            report_error(delivery.result)
            report_error(lambda: producer.partitions_for("t"))
            producer.close()
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        producer.send("t", b"parent again")
        producer.close()
        print(stored())
        """
    )
    expected = ["RuntimeError True"] * 3 + ["AlreadyClosed True", "RuntimeError True"]
    assert (code, out.splitlines(), err) == (0, [*expected, "7", "[b'parent', b'parent again']"], "")


def test_an_exiting_child_leaves_the_parents_producer_alone_silently() -> None:
    code, out, err = outcome(
        """
        producer = Producer(bootstrap_servers="boot:1", linger_ms=10_000)
        producer.send("t", b"parent")
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            producer.close()
            print(stored())
        """
    )
    assert (code, out.strip(), err) == (0, "[b'parent']", "")


def test_a_producer_made_after_the_fork_works() -> None:
    code, out, err = outcome(
        """
        producer = Producer(bootstrap_servers="boot:1")
        producer.send("t", b"parent").result()
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        else:
            with Producer(bootstrap_servers="boot:1") as mine:
                mine.send("t", b"child").result(timeout_ms=5000)
            print(stored(), flush=True)
        """
    )
    assert (code, out.strip(), err) == (0, "[b'parent', b'child']", "")


def test_an_asyncio_producer_refuses_after_a_fork_too() -> None:
    code, out, _ = outcome(
        """
        from ottla.aio import Producer
        async def main():
            producer = Producer(bootstrap_servers="boot:1")
            await (await producer.send("t", b"parent"))
            child = os.fork()
            if not child:
                try:
                    await producer.send("t", b"child")
                except RuntimeError as error:
                    print("made before the process forked" in str(error), flush=True)
                os._exit(0)
            os.waitpid(child, 0)
            await producer.close()
        asyncio.run(main())
        """
    )
    assert (code, out.strip()) == (0, "True")
