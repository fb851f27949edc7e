"""How producers end: with the interpreter, with Ctrl-C, after a fork, thrown away. Each in a process of its own, its cluster in memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
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
    """A Python that runs the script, its cluster in memory."""
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


# -- the end of the interpreter


def test_what_is_queued_when_the_interpreter_ends_is_sent_first() -> None:
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


def test_what_cannot_be_sent_when_the_interpreter_ends_is_told() -> None:
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


def test_what_the_broker_refuses_when_the_interpreter_ends_is_told() -> None:
    _, _, err = outcome(
        """
        cluster.batch_accidents.append(lambda topic, partition, header: 87)
        producer = Producer(bootstrap_servers="boot:1", linger_ms=10_000)
        producer.send("t", b"a")
        """
    )
    assert "1 records for t-0 may be lost: they failed while the interpreter ended: t-0 at node1:9092" in err


def test_threads_that_still_send_when_the_main_one_ends_are_waited_for() -> None:
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


def test_an_asyncio_producer_that_is_thrown_away_says_what_it_still_had() -> None:
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
def test_ctrl_c_interrupts_whatever_waits_and_leaves_at_once(waits: str) -> None:
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
        began = time.monotonic()
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=20)
    finally:
        running.kill()
    assert out == "interrupted\n", err
    assert time.monotonic() - began < 4
    assert running.returncode in (1, -signal.SIGINT, 130)


# -- forks


def test_after_a_fork_the_child_is_told_to_make_its_own_and_the_parent_goes_on() -> None:
    code, out, err = outcome(
        """
        producer = Producer(bootstrap_servers="boot:1", linger_ms=10_000)
        delivery = producer.send("t", b"parent")
        with producer._lock:                      # as if another thread were in the middle of a send
            child = os.fork()
        if not child:
            def said(call):
                try:
                    call()
                except Exception as error:
                    print(type(error).__name__, "made before the process forked" in str(error), flush=True)
            said(lambda: producer.send("t", b"child"))
            said(lambda: producer.send("t", b"child", partition=7))
            said(producer.flush)
            said(delivery.result)
            said(lambda: producer.partitions_for("t"))
            producer.close()
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        producer.send("t", b"parent again")
        producer.close()
        print(stored())
        """
    )
    told = ["RuntimeError True"] * 3 + ["AlreadyClosed True", "RuntimeError True"]
    assert (code, out.splitlines(), err) == (0, [*told, "7", "[b'parent', b'parent again']"], "")


def test_a_child_that_ends_leaves_the_parents_producer_alone_without_a_word() -> None:
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


def test_an_asyncio_producer_says_so_after_a_fork_too() -> None:
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
