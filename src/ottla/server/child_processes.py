"""Ends child processes together with the process that started them, also after ``kill -9``.

A small watcher process in its own session reads the pids of the children from a pipe. The pipe closes when the parent ends; the watcher
then kills the remaining children. This works on every system with pipes and needs no support from the children.
"""

import contextlib
import os
import signal
import subprocess
import sys


class ChildWatcher:
    def __init__(self) -> None:
        """Raises: OSError."""
        # Runs this file without the package, so the watcher starts fast and stays small.
        command = [sys.executable, "-I", "-S", __file__]
        self._watcher = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)

    def add(self, pid: int) -> None:
        """From now on the child ends with this process."""
        self._send(f"+{pid}")

    def remove(self, pid: int) -> None:
        """The child has ended; its pid may be reused."""
        self._send(f"-{pid}")

    def close(self) -> None:
        """Ends the watcher and all children that were not removed."""
        if self._watcher.stdin is not None:
            with contextlib.suppress(OSError):
                self._watcher.stdin.close()
        self._watcher.wait()

    def _send(self, line: str) -> None:
        assert self._watcher.stdin is not None, "it was opened as a pipe"
        # The children keep running if the watcher was killed.
        with contextlib.suppress(OSError, ValueError):
            self._watcher.stdin.write(f"{line}\n".encode())
            self._watcher.stdin.flush()


def watch() -> None:
    """Reads pids of children from standard input, and kills the remaining ones at its end."""
    children: set[int] = set()
    for line in sys.stdin:
        if line.startswith("+"):
            children.add(int(line[1:]))
        else:
            children.discard(int(line[1:]))
    for pid in children:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    watch()
