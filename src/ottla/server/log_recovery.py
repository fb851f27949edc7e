"""Opens the logs of one log directory in several threads.

Threads help where a start waits for the device: reads of a cold disk, syncs after a crash, and disks that are busy otherwise. Python
code runs in one thread at a time, so a start that finds everything in the page cache does not get faster.

Each log is opened by one thread, and no log uses files of another. The logs come back in the order of their names, whichever thread
ends first. Executors start tasks in the order in which they were submitted. So when logs fail, the first of them by name was started,
and its error is raised: the same one as without threads.
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
    """Opens the logs with so many threads; None for a file that is no partition's directory.

    ``check`` is called before each log. What it raises ends the work, as a failed log does: no further log is started, and those under
    way are waited for.

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
