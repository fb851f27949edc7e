"""What `ottla doctor --data-dir` reads in a data directory whose broker does not run: the embedded store, and the small files of the logs.

The store is checked completely, as at a start. The small files are read. A broker that cannot read those of a log makes them again from the
log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from ottla.log import checkpoints, filenames
from ottla.log.errors import DirectoryRefused
from ottla.server.data_directory import STORE
from ottla.store.embedded.copies import doubt, read_store
from ottla.store.embedded.file import StoreFileError

#: Checkpoints of a log directory, and how each is read; None or False: it cannot be.
OF_DIRECTORY: dict[str, Callable[[bytes], object]] = {
    filenames.RECOVERY_POINTS: checkpoints.read_offsets,
    filenames.LOG_STARTS: checkpoints.read_offsets,
    filenames.HIGH_WATERMARKS: checkpoints.read_offsets,
    filenames.CLEANER_OFFSETS: checkpoints.read_offsets,
}
OF_PARTITION: dict[str, Callable[[bytes], object]] = {
    filenames.LEADER_EPOCHS: checkpoints.read_epochs,
    filenames.PARTITION_METADATA: checkpoints.read_partition_metadata,
}
#: Partitions that are looked at.
PARTITIONS_MAX = 10_000


def store_trouble(data_dir: Path) -> str | None:
    """Why the embedded store cannot be used; None when it is good, or there is none."""
    try:
        read_store(data_dir.absolute() / STORE)
    except StoreFileError as error:
        return str(error)
    return None


def store_doubt(data_dir: Path) -> str | None:
    """Why the embedded store may lack its last changes; None when it does not."""
    return doubt(data_dir.absolute() / STORE)


def metadata_troubles(data_dir: Path) -> Iterator[tuple[str, str]]:
    """(path, what is wrong) of each small file that cannot be read. Raises: OSError."""
    for directory in [data_dir, *sorted(path for path in data_dir.iterdir() if path.is_dir())]:
        properties = directory / filenames.META_PROPERTIES
        if not properties.exists():
            continue
        try:
            checkpoints.read_meta_properties(properties.read_bytes(), str(directory))
        except DirectoryRefused as error:
            yield str(properties), f"{error}; a broker does not start with it"
        yield from _unreadable(directory, OF_DIRECTORY)
        partitions = [path for path in sorted(directory.iterdir()) if filenames.partition_of(path.name) is not None and path.is_dir()]
        for partition in partitions[:PARTITIONS_MAX]:
            yield from _unreadable(partition, OF_PARTITION)


def _unreadable(directory: Path, readers: dict[str, Callable[[bytes], object]]) -> Iterator[tuple[str, str]]:
    for name, read in readers.items():
        path = directory / name
        if path.exists() and read(path.read_bytes()) is None:
            yield str(path), "it cannot be read; the next start makes it again from the log"
