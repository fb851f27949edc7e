"""Finds the input files and their formats, which follow from their names unless a format is given.

    orders.csv .tsv             comma- or tab-separated, the first line has the column names
    orders.jsonl .ndjson .json  a JSON value on each line
    orders.parquet .pq
    orders.arrow .ipc .feather .arrows    Arrow's file and stream formats, distinguished by their first bytes
    orders.txt .log .text       each line is a value

Text may be compressed, with another suffix: .gz .zst .bz2 .lz4 .br. A directory stands for all files with such names at any depth, in the
order of their paths, except those that begin with ``.`` or ``_``, as in Spark and Hive. Directories called ``name=value`` add a column to
the files below them.

Objects of object stores are named by their addresses; a prefix stands for a directory, and patterns work.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from glob import glob, has_magic
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, NamedTuple
from urllib.parse import unquote

from ottla.base.options import suggestion
from ottla.base.paths import NotLocal, is_object_url, local_path
from ottla.lake.storage import Location, StorageError, location, matching

FORMATS = ("csv", "tsv", "json", "parquet", "arrow", "text")
SUFFIXES = {
    ".csv": "csv", ".tsv": "tsv", ".tab": "tsv",
    ".json": "json", ".jsonl": "json", ".ndjson": "json",
    ".parquet": "parquet", ".pq": "parquet",
    ".arrow": "arrow", ".ipc": "arrow", ".feather": "arrow", ".arrows": "arrow",
    ".txt": "text", ".text": "text", ".log": "text",
}  # fmt: skip
#: pyarrow's names of codecs.
CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4", ".br": "brotli"}
#: Formats of lines; such files may be compressed and may grow.
LINES = ("csv", "tsv", "json", "text")
STDIN = "-"
#: Null in the name of a directory.
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
#: Bytes at the start and before the end that identify a file.
PRINT_BYTES = 64 * 1024


class CannotLoad(ValueError):
    """Files that cannot be loaded; the message has the remedy."""


class Input(NamedTuple):
    """A file to load."""

    #: As the user wrote it; `STDIN` for standard input.
    name: str
    format: str
    codec: str | None
    size: int
    mtime_ns: int
    #: Columns from directory names, in the style of Spark and Hive: ``year=2026/city=Graz/part-0.parquet``; None: null.
    fixed: tuple[tuple[str, str | None], ...] = ()
    #: The bucket of an object; None: a file of this machine.
    bucket: Location | None = None

    @property
    def identity(self) -> str:
        """The name of the file in the journal."""
        return self.name if self.name == STDIN or self.bucket is not None else str(Path(self.name).resolve())

    @property
    def key(self) -> str:
        """The name of an object in its bucket."""
        assert self.bucket is not None, "it is an object"
        return self.name.removeprefix(f"{self.bucket}/")

    def open(self) -> BinaryIO:
        """Its bytes, from any position. Raises: OSError."""
        return open(self.name, "rb") if self.bucket is None else self.bucket.open(self.key)


def inputs(names: Iterable[str], form: str | None, storage: Callable[[str], Mapping[str, str]] = lambda _: {}) -> list[Input]:
    """The distinct files of ``names``: files, directories, patterns, ``-``, addresses of objects; `storage`: options of an address.

    Raises: CannotLoad, OSError.
    """
    found: dict[str, Input] = {}
    for name in names:
        if is_object_url(name):
            found |= {one.identity: one for one in _objects(name, form, storage(name))}
            continue
        for path in _paths(name, form):
            one = _input(path, form)
            found.setdefault(one.identity, one)
    return list(found.values())


def _paths(name: str, form: str | None) -> list[str]:
    if name == STDIN:
        return [name]
    try:
        path = Path(local_path(name)).expanduser()
    except NotLocal as error:
        raise CannotLoad(str(error)) from None
    if path.is_dir():
        if (path / "_delta_log").is_dir():
            raise CannotLoad(f"{name} is a Delta table, whose directory may hold files that are no part of it any more: export it first")
        chosen = _inside(path, form)
        if not chosen:
            raise CannotLoad(f"{name}: no file in it ends in {', '.join(SUFFIXES)}; name the files, and --format")
        return chosen
    if path.exists():
        return [str(path)]
    if has_magic(name):
        matching = sorted(one for one in glob(str(path), recursive=True) if Path(one).is_file())
        if matching:
            return matching
        raise CannotLoad(f"{name}: no file matches")
    near = suggestion(path.name, [one.name for one in path.parent.iterdir()]) if path.parent.is_dir() else ""
    raise CannotLoad(f"{name}: no such file{near}")


def _objects(name: str, form: str | None, storage: Mapping[str, str]) -> list[Input]:
    try:
        bucket, objects = matching(location(name, storage))
    except StorageError as error:
        raise CannotLoad(str(error)) from None
    if any("/_delta_log/" in f"/{one.name}" for one in objects):
        raise CannotLoad(f"{name} is a Delta table, which may hold files that are no part of it any more: export it first")
    alone = len(objects) == 1 and str(location(name)) == f"{bucket}/{objects[0].name}"
    wanted = (*FORMATS,) if form is None else (form, None)
    below = str(location(name)).removeprefix(f"{bucket}/") if not has_magic(name) else ""
    chosen = [one for one in objects if alone or (_is_shown(one.name.removeprefix(below)) and _kind(one.name)[0] in wanted)]
    if not chosen:
        raise CannotLoad(f"{name}: no object there ends in {', '.join(SUFFIXES)}; name the objects, and --format")
    return [_described(f"{bucket}/{one.name}", form, one.size, one.mtime_ns, bucket) for one in chosen]


def _is_shown(name: str) -> bool:
    return not any(part.startswith((".", "_")) for part in name.split("/")) and not name.endswith("/")


def _inside(directory: Path, form: str | None) -> list[str]:
    """Files with a known name; with a given format those whose name has that format or none."""
    wanted = (*FORMATS,) if form is None else (form, None)
    found = []
    for at, below, files in os.walk(directory):
        below[:] = [one for one in below if not one.startswith((".", "_"))]
        found += [str(Path(at) / one) for one in files if not one.startswith((".", "_")) and _kind(one)[0] in wanted]
    return sorted(found)


def _kind(name: str) -> tuple[str | None, str | None]:
    """Format and codec of a name."""
    path = Path(name.lower())
    codec = CODECS.get(path.suffix)
    if codec is not None:
        path = path.with_suffix("")
    return SUFFIXES.get(path.suffix), codec


def _input(name: str, form: str | None) -> Input:
    if name == STDIN:
        if form is None:
            raise CannotLoad("standard input has no name to tell its format by: add --format, one of " + ", ".join(FORMATS))
        return Input(name, form, None, 0, 0)
    stat = Path(name).stat()
    return _described(name, form, stat.st_size, stat.st_mtime_ns, None)


def _described(name: str, form: str | None, size: int, mtime_ns: int, bucket: Location | None) -> Input:
    by_name, codec = _kind(name)
    chosen = form or by_name
    if chosen is None:
        raise CannotLoad(f"{name}: its name does not tell its format: add --format, one of {', '.join(FORMATS)}")
    if codec is not None and chosen not in LINES:
        raise CannotLoad(f"{name}: {chosen} files are compressed inside; unpack it first")
    fixed = _fixed(name) if chosen in ("csv", "tsv", "parquet", "arrow") else ()
    return Input(name, chosen, codec, size, mtime_ns, fixed, bucket)


def _fixed(name: str) -> tuple[tuple[str, str | None], ...]:
    pairs = [part.partition("=") for part in Path(name).parts[:-1] if "=" in part[1:]]
    return tuple((unquote(column), None if value == HIVE_NULL else unquote(value)) for column, _, value in pairs)


def fingerprint(given: Input, size: int) -> str:
    """A short hash of the start and the end of a file's first ``size`` bytes."""
    digest = blake2b(digest_size=12)
    with given.open() as file:
        digest.update(file.read(min(size, PRINT_BYTES)))
        file.seek(max(size - PRINT_BYTES, 0))
        digest.update(file.read(min(size, PRINT_BYTES)))
    return digest.hexdigest()


def ends_in_line(given: Input, size: int) -> bool:
    """Whether the first ``size`` bytes end with a line end."""
    with given.open() as file:
        file.seek(max(size - 1, 0))
        return file.read(1) == b"\n"
