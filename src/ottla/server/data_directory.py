"""The data directory of a process: made, checked, and held by one process at a time."""

import errno
import fcntl
import os
from pathlib import Path

LOCK = ".lock"
STORE = "meta/ottla-store.sqlite"


class CannotStart(Exception):
    """Why a server does not start, in one line for the operator, with the remedy."""


class StoppedWhileStarting(CannotStart):
    """The process was asked to stop before it served."""


class UnusableDirectory(CannotStart):
    """The disk refuses; a server with other log directories starts without this one."""


def default_data_directory() -> Path:
    """``$XDG_DATA_HOME/ottla``, by default ``~/.local/share/ottla``."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "ottla"


class LockedDirectory:
    """A directory with its lock. The lock goes with the process, however it ends; the file stays."""

    def __init__(self, path: Path) -> None:
        """Makes the directory if need be. Raises: CannotStart."""
        self.path = path.absolute()
        #: A child that is given it holds the directory too.
        self.descriptor = -1
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.descriptor = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._sign()
        except BlockingIOError:
            holder = os.pread(self.descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
            self.release()
            raise CannotStart(f"{self.path} is in use by process {holder}; stop that one, or choose another --data-dir") from None
        except OSError as error:
            self.release()
            reason = "it is not a directory" if isinstance(error, FileExistsError) else error.strerror
            raise UnusableDirectory(f"cannot use the directory {self.path}: {reason}; choose another --data-dir") from None

    def _sign(self) -> None:
        """Notes who holds it, in place and in a fixed width, so that it needs no new room on a full disk; a new file may go without."""
        try:
            os.pwrite(self.descriptor, f"{os.getpid():<19}\n".encode(), 0)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise

    def release(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
