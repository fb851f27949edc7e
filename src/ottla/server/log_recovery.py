"""Opens the logs of one log directory in several threads.

Threads help when a start waits for the device: reads of a cold disk, syncs after a crash, busy disks. Python code runs in one thread at a
time, so a start whose files are in the page cache does not get faster.

One thread opens each log, and no log uses files of another. The result is in the order of the names. Executors start tasks in the order of
submission. So when logs fail, the first of them by name was started, and its error is raised: the same one as without threads.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Executor, ThreadPoolExecutor, wait

from ottla.log.log import Log
from ottla.log.recovery import ClosedLog

#: Prefix of the threads' names.
THREADS = "ottla-recovery"


def _pool(count: int, name: str) -> Executor:
    return ThreadPoolExecutor(count, thread_name_prefix=name)


def open_in_threads(
    logs: Sequence[ClosedLog],
    *,
    threads: int,
    check: Callable[[], None] = lambda: None,
    pool: Callable[[int, str], Executor] = _pool,
) -> list[Log | None]:
    """Opens the logs; None for a file that is not a partition's directory.

    ``check`` is called before each log. Its exception, like that of a failed log, starts no further log, and is raised when the running
    ones end.

    Raises: OSError of a disk, and what ``check`` raises.
    """

    def opened(log: ClosedLog) -> Log | None:
        check()
        return log.open()

    threads = min(threads, len(logs))
    if threads <= 1:
        return [opened(log) for log in logs]
    with pool(threads, THREADS) as executor:
        futures = [executor.submit(opened, log) for log in logs]
        wait(futures, return_when=FIRST_EXCEPTION)
        for future in futures:
            future.cancel()
    return [future.result() for future in futures if not future.cancelled()]
