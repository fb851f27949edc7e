"""Children that end with the process that started them, however it ends, ``kill -9`` included.

A watcher, a second small process in a session of its own, hears through a pipe which children there are; when the pipe ends, because
whoever held its other end is gone, it kills those that are left. It works wherever there are pipes, and needs nothing of the children.
"""

import contextlib
import os
import signal
import subprocess
import sys


class ChildWatcher:
    """A watcher, and the children it was told of."""

    def __init__(self) -> None:
        """Raises: OSError."""
        # This file by itself, without the package: it starts in a moment and stays small.
        command = [sys.executable, "-I", "-S", __file__]
        self._watcher = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)

    def bind(self, pid: int) -> None:
        """From now on the child ends with us."""
        self._tell(f"+{pid}")

    def loose(self, pid: int) -> None:
        """The child has ended: its number may become another's."""
        self._tell(f"-{pid}")

    def close(self) -> None:
        """Ends the watcher, and any child that was not loosed."""
        if self._watcher.stdin is not None:
            with contextlib.suppress(OSError):
                self._watcher.stdin.close()
        self._watcher.wait()

    def _tell(self, line: str) -> None:
        assert self._watcher.stdin is not None, "it was opened as a pipe"
        # A watcher that somebody killed can no longer help; the children need not suffer.
        with contextlib.suppress(OSError, ValueError):
            self._watcher.stdin.write(f"{line}\n".encode())
            self._watcher.stdin.flush()


def watch() -> None:
    """Hears of children on standard input, and kills those that are left at its end."""
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
