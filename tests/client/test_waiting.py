"""Waiting for another thread with support for Ctrl-C: in slices, without a lock that an interrupt could leave locked."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError
from queue import Empty, SimpleQueue
from typing import Any, cast

import pytest

from ottla.client.sync.loop_thread import LoopThread
from ottla.client.sync.waiting import SLICE_MAX_S, SLICE_MIN_S, Stop, taken


class Late:
    """A queue that is empty for the first `empty_times` reads."""

    def __init__(self, empty_times: int) -> None:
        self.asked: list[float | None] = []
        self._left = empty_times

    def get(self, *, timeout: float | None) -> str:
        self.asked.append(timeout)
        self._left -= 1
        if self._left >= 0:
            raise Empty
        return "it"


def late(empty_times: int) -> Any:
    return cast("SimpleQueue[str]", Late(empty_times))


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    made = LoopThread("test")
    yield made
    made.stop()


def test_the_main_thread_waits_in_growing_slices() -> None:
    queue = late(9)
    assert taken(queue) == "it"
    assert queue.asked[0] == SLICE_MIN_S
    assert queue.asked == sorted(queue.asked)
    assert queue.asked[-1] == SLICE_MAX_S


def test_a_timeout_shortens_the_last_slice() -> None:
    queue: SimpleQueue[None] = SimpleQueue()
    began_s = time.monotonic()
    with pytest.raises(Empty):
        taken(queue, 0.05)
    assert 0.05 <= time.monotonic() - began_s < 10


def test_a_ready_result_is_taken_without_waiting() -> None:
    queue: SimpleQueue[int] = SimpleQueue()
    queue.put(1)
    assert taken(queue, 0) == 1


def test_other_threads_wait_in_one_piece() -> None:
    queue = late(0)
    other = threading.Thread(target=taken, args=(queue,))
    other.start()
    other.join(20)
    assert queue.asked == [None]


def test_a_signal_handler_can_request_a_stop_while_its_thread_waits() -> None:
    stop = Stop()
    before = signal.signal(signal.SIGUSR1, lambda number, frame: stop.set())
    try:
        assert not stop.wait(0)
        threading.Timer(0.02, signal.raise_signal, [signal.SIGUSR1]).start()
        assert stop.wait(20)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert stop.is_set()


def test_a_stop_request_reaches_all_waiting_threads() -> None:
    stop, received = Stop(), SimpleQueue[bool]()
    waiting = [threading.Thread(target=lambda: received.put(stop.wait(20))) for _ in range(3)]
    for one in waiting:
        one.start()
    stop.set()
    for one in waiting:
        one.join(20)
    assert [received.get(timeout=20) for _ in waiting] == [True, True, True]


def test_an_interrupt_cancels_the_awaited_task(thread: LoopThread) -> None:
    ended: SimpleQueue[str] = SimpleQueue()

    async def work() -> None:
        try:
            signal.raise_signal(signal.SIGINT)  # The signal of the main thread, which waits.
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.put("cancelled")
            raise

    with pytest.raises(KeyboardInterrupt):
        thread.call(work())
    assert ended.get(timeout=20) == "cancelled"


def test_a_callback_runs_in_the_waiting_thread_and_its_error_ends_the_wait(thread: LoopThread) -> None:
    errands: Any = SimpleQueue()
    done: list[threading.Thread] = []

    def fails() -> None:
        done.append(threading.current_thread())
        raise ZeroDivisionError

    async def work() -> None:
        errands.put(fails)
        await asyncio.sleep(60)

    with pytest.raises(ZeroDivisionError):
        thread.call(work(), errands)
    assert done == [threading.main_thread()]


def test_a_finished_call_returns_its_result_or_raises_its_error(thread: LoopThread) -> None:
    async def gives() -> int:
        return 7

    async def raises() -> None:
        raise LookupError("none")

    async def is_cancelled() -> None:
        raise asyncio.CancelledError

    assert thread.call(gives()) == 7
    assert thread.submit(gives()).result() == 7
    with pytest.raises(LookupError, match="none"):
        thread.call(raises())
    with pytest.raises(CancelledError):
        thread.call(is_cancelled())


def test_a_raised_error_holds_no_reference_to_the_call(thread: LoopThread) -> None:
    class Held:
        pass

    async def raises(held: Held) -> None:
        raise LookupError

    held = Held()
    kept = weakref.ref(held)
    gc.disable()
    try:
        with pytest.raises(LookupError):
            thread.call(raises(held))
        del held
        thread.run(lambda: None)
        assert kept() is None
    finally:
        gc.enable()


def test_a_call_cancelled_before_its_start_never_runs(thread: LoopThread, recwarn: pytest.WarningsRecorder) -> None:
    ran: list[bool] = []

    async def work() -> None:
        ran.append(True)

    call = thread._call_of(work(), None)
    call.cancel()
    call.begin()
    thread.run(lambda: None)
    del call
    gc.collect()
    assert not ran
    assert not recwarn.list
