"""What a log asks to have on disk, and how a fetch names bytes of a log file without reading them."""

from dataclasses import dataclass

from ottla.base.ids import Offset
from ottla.base.ports import File


@dataclass(slots=True)
class FlushPlan:
    """Sync these files, then these directories (new or renamed names), and every record below ``upto`` is durable."""

    upto: Offset
    files: tuple[File, ...]
    directories: tuple[str, ...] = ()


class Slice:
    """Bytes ``position`` to ``position + size`` of a log file, to be sent without passing through Python. ``len()`` is the size."""

    __slots__ = ("file", "position", "size")

    def __init__(self, file: File, position: int, size: int) -> None:
        self.file = file
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    def read(self) -> bytes:
        """The bytes themselves, for TLS, for small answers and for tests."""
        return self.file.read(self.position, self.size)

    def __repr__(self) -> str:
        return f"Slice({self.file.path}, {self.position}, {self.size})"
