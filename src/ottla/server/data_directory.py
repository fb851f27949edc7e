"""The data directory of a process; one process at a time locks it."""

import errno
import fcntl
import os
from pathlib import Path

LOCK = ".lock"
STORE = "meta/ottla-store.sqlite"


class CannotStart(Exception):
    """A server cannot start; the message is one line for the operator, with the remedy."""


class StoppedWhileStarting(CannotStart):
    """A stop was requested before the process served."""


class UnusableDirectory(CannotStart):
    """The disk failed; a server with other log directories starts without this one."""


def default_data_directory() -> Path:
    """``$XDG_DATA_HOME/ottla``, by default ``~/.local/share/ottla``."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "ottla"


def refuse_kafka_directory(path: Path) -> None:
    """Raises: CannotStart, if this is a log directory of Kafka: its meta.properties has neither Ottla's checksum nor Ottla's settings."""
    properties = path / "meta.properties"
    try:
        data = properties.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise UnusableDirectory(f"cannot read {properties}: {error.strerror}; choose another --data-dir") from None
    if b"#crc32c=" not in data and b"ottla." not in data and b"cluster.id=" in data:
        raise CannotStart(f"{path} is a log directory of Apache Kafka; {IMPORT_REMEDY.format(path)}")


#: The remedy for a directory of Kafka.
IMPORT_REMEDY = "import it, which does not change it: ottla import {} --data-dir NEW"


class LockedDirectory:
    """A locked directory. The lock ends with the process in every case; the lock file stays."""

    def __init__(self, path: Path) -> None:
        """Creates the directory if missing. Raises: CannotStart."""
        self.path = path.absolute()
        #: A child process that inherits it holds the lock too.
        self.descriptor = -1
        refuse_kafka_directory(self.path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.descriptor = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write_pid()
        except BlockingIOError:
            holder = os.pread(self.descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
            self.release()
            raise CannotStart(f"{self.path} is in use by process {holder}; stop that process, or choose another --data-dir") from None
        except OSError as error:
            self.release()
            reason = "it is not a directory" if isinstance(error, FileExistsError) else error.strerror
            raise UnusableDirectory(f"cannot use the directory {self.path}: {reason}; choose another --data-dir") from None

    def _write_pid(self) -> None:
        """Writes the pid in place with a fixed width, which needs no space on a full disk. A new lock file there stays empty."""
        try:
            os.pwrite(self.descriptor, f"{os.getpid():<19}\n".encode(), 0)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise

    def release(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
