"""The file of the embedded store: its format, the checks of its contents, and the one connection that writes it.

::

    node(path, data, version, created_zxid, checksum)   one row per node that is not ephemeral
    number(name, value)                                 format: 2, zxid: the last transaction, checksum: of all other rows of both tables

SQLite's ``integrity_check`` finds damage in the structure of pages. It does not find a changed bit in a value, a lost page that an older
one replaced, or a write-ahead log that SQLite ignores because its header is damaged. Therefore:

- Each row has a checksum, so that an error names the node.
- The sum of the checksums of all rows is stored too, so that a row cannot go missing.
- The file ``…-last`` has the number and the sum of the last transaction. It is written after each commit and not synced. It can be older
  than the file, after a power cut, and never newer. A store that ends before it has lost acknowledged changes. ``copies.py`` says
  what follows when it is missing or cannot be read.

Format 1, of Ottla 0.1.0, has no checksums; only its structure is checked. ``StoreFile`` adds the checksums when the cluster's level of
ottla.version is raised to 2. Until then 0.1.0 can open the file. Copies always have format 2.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

from crc32c import crc32c

from ottla.store import layout
from ottla.store.tree import parent_of

FORMAT = 2
#: Identifies Ottla's files in SQLite's header ("Ottl").
APPLICATION_ID = 0x4F74746C
#: Size of the write-ahead log, in pages of 4 KiB, at which it is written back to the file.
CHECKPOINT_PAGES = 200
#: Checksums are stored in SQLite's signed 64-bit integers.
CHECKSUM_MASK = (1 << 63) - 1
#: Findings of integrity_check that are read; only the first one is shown.
FINDINGS_MAX = 5

SCHEMA = (
    "CREATE TABLE node(path TEXT PRIMARY KEY, data BLOB NOT NULL, version INTEGER NOT NULL, created_zxid INTEGER NOT NULL,"
    " checksum INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID",
    "CREATE TABLE number(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
)

#: Errors of SQLite that are not damage: the file is locked, not accessible, or the disk is full or fails.
_NOT_DAMAGE = {
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_NOMEM,
}  # fmt: skip

#: Content of a node: data, version, created zxid.
Stored = tuple[bytes, int, int]
#: A changed node: path and content, or None if it was deleted.
Row = tuple[str, Stored | None]


class StoreFileError(Exception):
    """The file cannot be used: it is another program's, another format's, not accessible, or open in another process."""


class StoreForeign(StoreFileError):
    """The file belongs to another program or has another format, according to its header, which may be damaged."""


class StoreDamaged(StoreFileError):
    """The contents of the file differ from what was written."""

    def __init__(self, path: Path, finding: str) -> None:
        super().__init__(f"the coordination store {path} is damaged: {finding}")
        self.path = path
        self.finding = finding


class Last(NamedTuple):
    """The last transaction of a store: its number, and the checksum of the contents after it."""

    zxid: int
    checksum: int


@dataclass(slots=True)
class Contents:
    """The contents of a store file."""

    rows: dict[str, Stored] = field(default_factory=dict)
    zxid: int = 0
    #: Sum of the checksums of all rows.
    rows_checksum: int = 0
    format: int = FORMAT

    @property
    def last(self) -> Last:
        numbers = (("format", self.format), ("zxid", self.zxid))
        return Last(self.zxid, (self.rows_checksum + sum(_number_checksum(name, value) for name, value in numbers)) & CHECKSUM_MASK)

    def change(self, rows: Iterable[Row], zxid: int) -> None:
        for path, stored in rows:
            former = self.rows.pop(path, None)
            if former is not None:
                self.rows_checksum -= row_checksum(path, former)
            if stored is not None:
                self.rows[path] = stored
                self.rows_checksum += row_checksum(path, stored)
        self.zxid = zxid

    def copy(self) -> Contents:
        return Contents(dict(self.rows), self.zxid, self.rows_checksum, self.format)

    def nodes(self) -> Iterable[tuple[str, bytes, int, int]]:
        """(path, data, version, created zxid), parents before children: a path sorts after its prefix."""
        return ((path, *self.rows[path]) for path in sorted(self.rows))


def has_format_2(rows: Iterable[Row]) -> bool:
    """Whether these rows raise ottla.version to a level at which the file has format 2."""
    stored = next((stored for path, stored in rows if path == layout.FEATURE), None)
    with contextlib.suppress(layout.MalformedNode):
        return stored is not None and layout.decode_feature(stored[0]).levels.get(layout.OTTLA_VERSION, 1) >= FORMAT
    return False


_LENGTHS = Struct(">IIqq")


def row_checksum(path: str, stored: Stored) -> int:
    """Checksum of 63 bits over all columns of a row."""
    data, version, created_zxid = stored
    name = path.encode()
    digest = blake2b(_LENGTHS.pack(len(name), len(data), version, created_zxid), digest_size=8)
    digest.update(name)
    digest.update(data)
    return int.from_bytes(digest.digest(), "big") & CHECKSUM_MASK


def _number_checksum(name: str, value: int) -> int:
    return row_checksum(name, (b"", value, 0))


# The last transaction, beside the file.


def last_path(path: Path) -> Path:
    return path.with_name(f"{path.name}-last")


def wal_path(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def last_file(last: Last) -> bytes:
    """One line of a fixed width: zxid, checksum, and the CRC-32C of both."""
    numbers = f"{last.zxid:020} {last.checksum:020}"
    return f"{numbers} {crc32c(numbers.encode()):010}\n".encode()


def read_last(path: Path) -> Last | None:
    """The last transaction as noted beside a store; None if there is no readable note."""
    try:
        data = last_path(path).read_bytes()
        zxid, checksum = (int(number) for number in data.split()[:2])
    except (OSError, ValueError):
        return None
    last = Last(zxid, checksum)
    return last if data == last_file(last) else None


# Reading and checking.


def read_contents(path: Path) -> Contents | None:
    """The contents of a store file after all checks of the file itself; None for an empty file, as a crash before the first transaction
    leaves it.

    Changes nothing: a write-ahead log is read and not written back. Raises: StoreFileError, StoreDamaged.
    """
    _check_kind(path)
    # SQLite rebuilds this file from the write-ahead log.
    shared = path.with_name(f"{path.name}-shm")
    with contextlib.suppress(OSError):
        shared.unlink()
    # Without a log, SQLite would make an empty one. With "immutable" it makes no file and takes no lock.
    how = "mode=ro" if _has_log(path) else "mode=ro&immutable=1"
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, timeout=0)) as connection:
            return _checked(connection, path)
    except sqlite3.Error as error:
        raise cannot_use(path, error) from error
    except (ValueError, OverflowError) as error:
        raise StoreDamaged(path, f"a value cannot be read: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            shared.unlink()


def _has_log(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return wal_path(path).stat().st_size > 0
    return False


def _check_kind(path: Path) -> None:
    """Raises: StoreFileError, StoreDamaged."""
    try:
        is_file = stat.S_ISREG(path.stat().st_mode)
        versions = b""
        if is_file:
            # Bytes 18 and 19: versions of SQLite's format to write and to read the file.
            with path.open("rb") as file:
                versions = file.read(20)[18:]
    except OSError as error:
        what_to_do = "; give the user of this process read and write access" if isinstance(error, PermissionError) else ""
        raise StoreFileError(f"cannot open the coordination store {path}: {error.strerror}{what_to_do}") from error
    if not is_file:
        raise StoreFileError(f"cannot open the coordination store {path}: it is not a regular file; put it back, or move it away")
    if not set(versions) <= {1, 2}:
        # SQLite would read such a file, but later refuse to write it.
        raise StoreDamaged(path, f"its header names versions {list(versions)} of SQLite's format")


def cannot_use(path: Path, error: sqlite3.Error) -> StoreFileError:
    """Turns an error of SQLite into the error to raise."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None or code & 0xFF not in _NOT_DAMAGE:
        return StoreDamaged(path, f"SQLite says: {error}")
    if code & 0xFF == sqlite3.SQLITE_READONLY and os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        return StoreDamaged(path, f"its header forbids writing. SQLite says: {error}")
    return StoreFileError(f"cannot use the coordination store {path}: {error}")


def _checked(connection: sqlite3.Connection, path: Path) -> Contents | None:
    """Raises: StoreFileError, StoreDamaged, sqlite3.Error."""
    findings = [row[0] for row in connection.execute(f"PRAGMA integrity_check({FINDINGS_MAX})")]
    if findings != ["ok"]:
        first = " ".join(str(findings[0]).split()) if findings else "no result"
        raise StoreDamaged(path, f"integrity_check says: {first}")
    owner = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master")]
    if not tables and owner in (0, APPLICATION_ID):
        return None
    if owner != APPLICATION_ID:
        raise StoreForeign(f"{path} is an SQLite file of another program: its application id is {owner}, not {APPLICATION_ID}")
    numbers = dict(connection.execute("SELECT name, value FROM number"))
    found = numbers.get("format")
    columns = [row[1] for row in connection.execute("PRAGMA table_info(node)")]
    if type(found) is not int or found < 1:
        raise StoreDamaged(path, f"its format is {found!r}")
    if found > FORMAT:
        raise StoreForeign(
            f"the coordination store {path} has format {found}; this version of Ottla reads formats 1 and {FORMAT}."
            " Start the newer version that wrote it"
        )
    if (found == 1) == ("checksum" in columns):
        raise StoreDamaged(path, f"it says that it has format {found}, and has the columns {', '.join(columns)}")
    return _rows(connection, path, numbers, has_checksums=found == FORMAT)


def _rows(connection: sqlite3.Connection, path: Path, numbers: dict[str, Any], *, has_checksums: bool) -> Contents:
    """Raises: StoreDamaged, sqlite3.Error."""
    contents = Contents(format=FORMAT if has_checksums else 1)
    zxid = numbers.get("zxid", 0)
    if type(zxid) is not int or zxid < 0:
        raise StoreDamaged(path, f"the number of its last transaction is {zxid!r}")
    checksum = "checksum" if has_checksums else "0"
    for node, data, version, created_zxid, stored_checksum in connection.execute(
        f"SELECT path, data, version, created_zxid, {checksum} FROM node ORDER BY path"
    ):
        if (type(node), type(data), type(version), type(created_zxid)) != (str, bytes, int, int):
            raise StoreDamaged(path, f"node {node!r} has values of wrong types")
        stored = (data, version, created_zxid)
        actual = row_checksum(node, stored)
        if has_checksums and actual != stored_checksum:
            raise StoreDamaged(path, f"the checksum of node {node} is {actual}, and {stored_checksum} was stored with it")
        contents.rows[node] = stored
        contents.rows_checksum += actual
    contents.zxid = zxid
    actual, noted = contents.last.checksum, numbers.get("checksum")
    if has_checksums and actual != noted:
        raise StoreDamaged(path, f"the checksum of all nodes is {actual}, and {noted} was stored with them")
    for node in contents.rows:
        parent = parent_of(node)
        if not node.startswith("/") or (parent != "/" and parent not in contents.rows):
            raise StoreDamaged(path, f"node {node!r} has no parent")
    return contents


def check_last(path: Path, contents: Contents) -> None:
    """Compares contents with the last transaction as noted beside the file. Raises: StoreDamaged."""
    noted = read_last(path)
    if noted is not None and noted.zxid > contents.zxid:
        log = "; its write-ahead log is damaged or missing" if contents.zxid else ""
        raise StoreDamaged(path, f"it ends with transaction {contents.zxid}, and transaction {noted.zxid} was written{log}")
    if noted is not None and noted.zxid == contents.zxid and noted.checksum != contents.last.checksum:
        raise StoreDamaged(path, f"the checksum of all nodes is {contents.last.checksum}, and {noted.checksum} was noted beside the file")


# Writing.


class StoreFile:
    """A store file that this process writes. Used by one thread at a time."""

    def __init__(self, path: Path, *, is_new: bool, found: Contents, advanced: Contents | None = None) -> None:
        """Opens a checked file, or creates one; ``found`` are its contents.

        ``advanced`` has the same nodes, some with larger numbers; they are written before the note. Raises: sqlite3.Error.
        """
        self.path = path
        #: The contents as written. Copies are made from this, not from the file, which may be damaged meanwhile.
        self.contents = found
        self._note: int | None = None
        self.connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            self.connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            self.connection.execute("PRAGMA journal_mode = WAL")
            self.connection.execute("PRAGMA synchronous = FULL")
            self.connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            if is_new:
                _create(self.connection, found)
            else:
                self._begin()
                if advanced is not None:
                    self._write([row for row in advanced.rows.items() if found.rows[row[0]] != row[1]], advanced.zxid)
                    # Into the file itself: if the log were lost with the next note, the same numbers would be assigned again.
                    self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except BaseException:
            self.connection.close()
            raise
        self._note_last()

    def _begin(self) -> None:
        """Always writes, so that an unwritable file is detected now. Raises: sqlite3.Error."""
        with transaction(self.connection):
            if self.contents.format == 1 and has_format_2(self.contents.rows.items()):
                self._add_checksums()
            _write_numbers(self.connection, self.contents)

    def _add_checksums(self) -> None:
        """Converts a file of format 1, in a transaction. Raises: sqlite3.Error."""
        self.connection.execute("ALTER TABLE node ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0")
        rows = ((row_checksum(path, stored), path) for path, stored in self.contents.rows.items())
        self.connection.executemany("UPDATE node SET checksum = ? WHERE path = ?", rows)
        self.contents.format = FORMAT

    def write(self, rows: Sequence[Row], zxid: int) -> None:
        """Writes one transaction. Raises: sqlite3.Error; then nothing was written."""
        self._write(rows, zxid)
        self._note_last()

    def _write(self, rows: Sequence[Row], zxid: int) -> None:
        before = self.contents.format
        after = Contents({}, self.contents.zxid, self.contents.rows_checksum)
        # Only changed rows, so that the cost of a transaction does not depend on the size of the store.
        after.rows = {path: former for path, _ in rows if (former := self.contents.rows.get(path)) is not None}
        after.change(rows, zxid)
        try:
            with transaction(self.connection):
                if before == 1 and has_format_2(rows):
                    self._add_checksums()
                after.format = self.contents.format
                self._write_rows(rows)
                _write_numbers(self.connection, after)
        except BaseException:
            self.contents.format = before
            raise
        self.contents.change(rows, zxid)

    def _write_rows(self, rows: Sequence[Row]) -> None:
        """Raises: sqlite3.Error."""
        for path, stored in rows:
            if stored is None:
                self.connection.execute("DELETE FROM node WHERE path = ?", (path,))
            elif self.contents.format == 1:
                self.connection.execute("INSERT OR REPLACE INTO node VALUES (?, ?, ?, ?)", (path, *stored))
            else:
                row = (path, *stored, row_checksum(path, stored))
                self.connection.execute("INSERT OR REPLACE INTO node VALUES (?, ?, ?, ?, ?)", row)

    def close(self) -> None:
        """Writes the write-ahead log back. Raises: sqlite3.Error."""
        if self._note is not None:
            os.close(self._note)
            self._note = None
        self.connection.close()

    def _note_last(self) -> None:
        """May fail: if the note is missing or unreadable, the next start advances epochs and ids."""
        with contextlib.suppress(OSError):
            if self._note is None:
                self._note = os.open(last_path(self.path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
                os.ftruncate(self._note, len(last_file(self.contents.last)))
            os.pwrite(self._note, last_file(self.contents.last), 0)


def write_new(path: Path, contents: Contents) -> None:
    """Writes and syncs a complete store file of format 2, and replaces an existing one. Raises: sqlite3.Error, OSError."""
    path.unlink(missing_ok=True)
    contents = replace(contents, format=FORMAT)
    with contextlib.closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        # A torn file is detected by its checksum; the file is synced below.
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        _create(connection, contents)
    sync(path)


def sync(path: Path) -> None:
    """Syncs a file or a directory. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Runs a transaction: commit, or rollback on an exception. Raises: sqlite3.Error."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _create(connection: sqlite3.Connection, contents: Contents) -> None:
    """Creates the tables and rows in one transaction. Raises: sqlite3.Error."""
    with transaction(connection):
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        for statement in SCHEMA:
            connection.execute(statement)
        rows = ((path, *contents.rows[path], row_checksum(path, contents.rows[path])) for path in sorted(contents.rows))
        connection.executemany("INSERT INTO node VALUES (?, ?, ?, ?, ?)", rows)
        _write_numbers(connection, contents)


def _write_numbers(connection: sqlite3.Connection, contents: Contents) -> None:
    last = contents.last
    # Ottla 0.1.0 would not update the checksum of a file of format 1.
    numbers = (("format", contents.format), ("zxid", last.zxid), ("checksum", last.checksum))[: 3 if contents.format == FORMAT else 2]
    connection.executemany("INSERT OR REPLACE INTO number VALUES (?, ?)", numbers)
