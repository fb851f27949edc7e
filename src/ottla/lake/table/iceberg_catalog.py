"""Where an Iceberg table is: its catalog, and its name there. The one place that opens catalogs.

    embedded    DIR/catalog.db, an SQL catalog on SQLite beside the table's files; one table per directory
    named       a catalog of pyiceberg's configuration (`.pyiceberg.yaml`, PYICEBERG_CATALOG__NAME__...), by name, with more properties:
                REST, SQL, Glue, Hive, Unity by its REST interface, and others that pyiceberg knows

A table's current metadata file is named by its catalog alone, so the catalog decides which of two writers commits.

Errors of catalogs become `CatalogError`, without the secrets of the catalog's properties. Files of this machine are synced before the
catalog names them: after a crash of the machine the catalog must not name a file that is not there.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ottla.base.paths import ADDRESS
from ottla.client.profiles import FILE, VARIABLE, ProfileError, secret_from
from ottla.lake.full_disk import naming, sync
from ottla.lake.storage import Location, plain
from ottla.lake.table.target import MARKS, TableConflict

try:
    import requests
    from pyiceberg import exceptions
    from pyiceberg.catalog import load_catalog
    from pyiceberg.io import ADLS_ACCOUNT_NAME
    from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
    from pyiceberg.utils.config import Config
    from sqlalchemy.exc import OperationalError, SQLAlchemyError
except ImportError as error:
    raise ImportError(f"Iceberg tables need pyiceberg ({error}): pip install 'ottla[iceberg]'") from None
try:
    from botocore import exceptions as aws
except ImportError:
    # Glue and DynamoDB need it.
    aws = None
try:
    from thrift.Thrift import TException
    from thrift.transport.TTransport import TTransportException
except ImportError:
    # Hive needs it.
    TException = TTransportException = None

#: The catalog of one directory: its file, its name in that file, and the namespace of its table.
EMBEDDED, NAME, NAMESPACE = MARKS["iceberg"][0], "ottla", "ottla"
#: Properties that hold a secret, by a word of their names.
_SECRET = re.compile(r"token|credential|secret|password|access-?key|account-?key|authorization|connection-string", re.IGNORECASE)
_NOT_SECRET = re.compile(r"access-?key-?id|token-refresh|expires-at", re.IGNORECASE)
_PASSWORD_IN_URI = re.compile(r"(://[^/@:\s]*:)[^/@\s]+@")
#: Addresses with a container and an account.
_AZURE = ("abfs", "abfss", "wasb", "wasbs")
#: Attempts to create a namespace and a table while others do the same.
CREATE_TRIES = 3
#: Tables of version 1 have no sequence numbers, which tell commits apart.
FORMAT_VERSION_MIN = 2
#: Characters that libraries read differently in an address of a file.
_UNSAFE = re.compile(r"[#?%]")
#: Errors of catalogs. Those of pyiceberg have no common base.
ERRORS: tuple[type[Exception], ...] = (
    SQLAlchemyError,
    requests.RequestException,
    *(one for one in vars(exceptions).values() if isinstance(one, type) and one.__module__ == exceptions.__name__),
    *((aws.BotoCoreError, aws.ClientError) if aws else ()),
    *((TException,) if TException else ()),
)
_PASSING: tuple[type[Exception], ...] = (
    exceptions.CommitStateUnknownException,
    exceptions.ServiceUnavailableError,
    exceptions.ServerError,
    requests.ConnectionError,
    requests.Timeout,
    OperationalError,
    *((aws.ConnectionError, aws.HTTPClientError) if aws else ()),
    *((TTransportException,) if TTransportException else ()),
)


class CatalogError(OSError):
    """A catalog refused or did not answer; the message says which catalog and what to do."""


class CatalogUnavailable(CatalogError):
    """A catalog did not answer, or failed, also after other attempts. It may do so later."""


class CatalogOptionError(ValueError):
    """An option of a catalog that cannot be used."""


@dataclass(frozen=True, slots=True)
class IcebergPlace:
    """A table's catalog and name. Secrets among the properties are references, so its fields show none."""

    catalog: str
    properties: tuple[tuple[str, str], ...] = ()
    #: Namespace and name; empty: the table of the directory.
    identifier: tuple[str, ...] = ()
    #: Of an embedded catalog.
    directory: Path | None = None

    def __str__(self) -> str:
        return str(self.directory) if self.directory is not None else f"{'.'.join(self.identifier)} in catalog {self.catalog}"

    def is_there(self) -> bool:
        """Whether an embedded catalog exists; others are always there."""
        return self.directory is None or (self.directory / EMBEDDED).exists()

    def open(self) -> Any:
        """The catalog. Raises: CatalogError, CatalogOptionError."""
        properties = _resolved(self)
        with explained(self):
            try:
                return load_catalog(self.catalog, **properties)
            except (ValueError, ImportError) as error:
                raise CatalogError(_hidden(f"{self}: {error}", properties)) from None
            except SQLAlchemyError:
                # Another process may have created the tables of the catalog at the same moment.
                return load_catalog(self.catalog, **properties)


def embedded(where: Location | Path) -> IcebergPlace:
    """A table in a directory of this machine. Raises: CatalogOptionError."""
    if isinstance(where, Location):
        if not where.is_local:
            raise CatalogOptionError(
                f"{where}: an Iceberg table in an object store needs a catalog, which decides between writers; name one of your"
                " .pyiceberg.yaml: --catalog NAME --to NAMESPACE.TABLE. The embedded catalog is for directories of this machine"
            )
        where = where.path
    directory = Path(os.path.abspath(where))
    if _UNSAFE.search(str(directory)):
        raise CatalogOptionError(f"{directory}: an Iceberg table cannot be in a directory whose path has #, ? or %; use another one")
    properties = (("type", "sql"), ("uri", f"sqlite:///{directory / EMBEDDED}"))
    return IcebergPlace(NAME, properties, (), directory)


def in_catalog(name: str, table: str, options: Mapping[str, str]) -> IcebergPlace:
    """A table NAMESPACE.TABLE of a catalog. Raises: CatalogOptionError."""
    identifier = tuple(table.split("."))
    if len(identifier) < 2 or "/" in table or not all(identifier) or ADDRESS.match(table):
        raise CatalogOptionError(
            f"the table of a catalog is named NAMESPACE.TABLE, such as lake.orders, not {table}; the catalog knows its place"
        )
    for option, value in options.items():
        is_secret = is_secret_name(option) or _PASSWORD_IN_URI.search(value) is not None
        if is_secret and not _is_reference(value):
            raise CatalogOptionError(
                f"catalog option {option} holds a secret, which others could read: write {option}=env:VARIABLE or {option}=file:FILE"
            )
    try:
        configured = Config().get_catalog_config(name)
    except ValueError as error:
        raise CatalogOptionError(f"the configuration of pyiceberg cannot be used: {error}") from None
    if configured is None and not options:
        raise CatalogOptionError(
            f"catalog {name} is not configured: add it to .pyiceberg.yaml (in your home directory, or that of PYICEBERG_HOME), set"
            f" PYICEBERG_CATALOG__{name.upper()}__URI, or give the catalog option uri"
        )
    return IcebergPlace(name, tuple(sorted(options.items())), identifier)


def is_secret_name(option: str) -> bool:
    """Whether a property of this name holds a secret."""
    return _SECRET.search(option) is not None and _NOT_SECRET.search(option) is None


def _is_reference(value: str) -> bool:
    """Whether a value says where a secret is. file://... is an address, such as that of a warehouse."""
    return value.startswith((FILE, VARIABLE)) and not value.startswith("file://")


def _resolved(place: IcebergPlace) -> dict[str, str]:
    """All properties, with secrets. Raises: CatalogOptionError."""
    try:
        properties = {name: secret_from(name, value) if _is_reference(value) else value for name, value in place.properties}
    except ProfileError as error:
        raise CatalogOptionError(f"catalog option {error.problem}") from None
    configured = (Config().get_catalog_config(place.catalog) or {}) if place.directory is None else {}
    if "py-io-impl" not in configured:
        properties.setdefault("py-io-impl", f"{SyncedFileIO.__module__}.{SyncedFileIO.__qualname__}")
    return properties


@contextmanager
def explained(place: IcebergPlace, *, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Converts errors of catalogs, except some. Raises: CatalogError."""
    try:
        yield
    except but:
        raise
    except ERRORS as error:
        raise catalog_error(place, error) from None


def is_passing(error: Exception) -> bool:
    """Whether after this error a commit may be there or not, or another attempt may succeed."""
    if aws is not None and isinstance(error, aws.ClientError):
        code, status = (
            error.response.get(part, {}).get(name) for part, name in (("Error", "Code"), ("ResponseMetadata", "HTTPStatusCode"))
        )
        return (status or 0) >= 500 or "Throttl" in (code or "")
    return isinstance(error, _PASSING)


def catalog_error(place: IcebergPlace, error: Exception) -> CatalogError:
    """The error in one line, without secrets."""
    configured = (Config().get_catalog_config(place.catalog) or {}) if place.directory is None else {}
    properties = {name: value for name, value in configured.items() if isinstance(value, str)}
    # SQLAlchemy's text has the statement and a link after the cause.
    text = str(getattr(error, "orig", None) or error) or type(error).__name__
    kind = CatalogUnavailable if is_passing(error) else CatalogError
    return kind(_hidden(f"{place}: {plain(text)}", properties | _known(place)))


def _known(place: IcebergPlace) -> dict[str, str]:
    try:
        return _resolved(place)
    except CatalogOptionError:
        return {}


def _hidden(text: str, properties: Mapping[str, str]) -> str:
    for name, value in properties.items():
        # A credential is ID:SECRET.
        for secret in {value, value.rpartition(":")[2]} if is_secret_name(name) else ():
            if len(secret) > 3:
                text = text.replace(secret, "(hidden)")
    return _PASSWORD_IN_URI.sub(r"\1(hidden)@", text)


class SyncedFileIO(PyArrowFileIO):  # type: ignore[misc]
    """Files by Arrow; those of this machine are on disk when they are closed.

    pyiceberg 0.12 takes CONTAINER@ACCOUNT.dfs.core.windows.net of Azure's addresses for the name of the container, so no file is found
    (https://github.com/apache/iceberg-python/issues/2698).
    """

    @staticmethod
    def parse_location(location: str, properties: Mapping[str, str] = MappingProxyType({})) -> tuple[str, str, str]:
        scheme, netloc, path = PyArrowFileIO.parse_location(location, properties)
        container, at, _ = netloc.partition("@")
        if scheme in _AZURE and at and path.startswith(netloc):
            path = container + path[len(netloc) :]
        return scheme, netloc, path

    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> Any:
        _, at, host = (netloc or "").partition("@")
        if scheme not in _AZURE or not at or ADLS_ACCOUNT_NAME in self.properties:
            return super()._initialize_fs(scheme, netloc)
        account = host.partition(".")[0]
        return PyArrowFileIO({**self.properties, ADLS_ACCOUNT_NAME: account})._initialize_fs(scheme, netloc)

    def new_output(self, location: str) -> Any:
        file = super().new_output(location)
        path = local_file(location)
        return file if path is None else _SyncedFile(location, file, path)


class _SyncedFile(PyArrowFile):  # type: ignore[misc]
    def __init__(self, location: str, file: Any, path: Path) -> None:
        super().__init__(location, file._path, file._filesystem, file._buffer_size)
        self._local = path

    def create(self, overwrite: bool = False) -> Any:
        with naming(self._local):
            return _SyncedStream(super().create(overwrite), self._local)


class _SyncedStream:
    """A stream of pyarrow; `close` syncs the file and its directory."""

    def __init__(self, stream: Any, path: Path) -> None:
        self._stream, self._path = stream, path

    def write(self, data: bytes) -> int:
        with naming(self._path):
            return int(self._stream.write(data) or len(data))

    def tell(self) -> int:
        return int(self._stream.tell())

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def close(self) -> None:
        if self._stream.closed:
            return
        with naming(self._path):
            self._stream.close()
            for one in (self._path, self._path.parent):
                sync(one)

    def __enter__(self) -> "_SyncedStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def local_file(location: str) -> Path | None:
    """The path of a file of this machine; None for other addresses."""
    scheme, _, path = PyArrowFileIO.parse_location(location)
    return Path(path) if scheme == "file" else None


def loaded(place: IcebergPlace, catalog: Any) -> Any:
    """The table; None if there is none. Raises: CatalogError; TableConflict for a table of format version 1."""
    with explained(place):
        identifier = place.identifier or _only_table(catalog)
        if identifier is None:
            return None
        try:
            table = catalog.load_table(identifier)
        except (exceptions.NoSuchTableError, exceptions.NoSuchNamespaceError):
            return None
    version = table.metadata.format_version
    if version < FORMAT_VERSION_MIN:
        raise TableConflict(
            f"the table at {place} has format version {version}, whose commits have no numbers; upgrade it, for example with Spark: ALTER"
            f" TABLE … SET TBLPROPERTIES ('format-version' = '{FORMAT_VERSION_MIN}')"
        )
    return table


@contextmanager
def opened_table(place: IcebergPlace) -> Iterator[Any]:
    """The table, with its catalog open. Raises: TableConflict if there is none; CatalogError."""
    catalog = place.open() if place.is_there() else None
    try:
        table = None if catalog is None else loaded(place, catalog)
        if table is None:
            raise TableConflict(f"there is no table at {place}")
        yield table
    finally:
        if catalog is not None:
            catalog.close()


def _only_table(catalog: Any) -> Any:
    if not catalog.namespace_exists(NAMESPACE):
        return None
    return next(iter(catalog.list_tables(NAMESPACE)), None)


def created(place: IcebergPlace, catalog: Any, topic: str, **what: Any) -> None:
    """Creates the table of a topic in one transaction; if it is there already, it is not changed.

    `what`: schema, properties, and partition_by, columns with transforms, whose values are the partitions. Raises: CatalogError.
    """
    identifier = place.identifier or (NAMESPACE, re.sub(r"[^A-Za-z0-9_]", "_", topic))
    location = None if place.directory is None else f"file://{place.directory}"
    partition_by = what.pop("partition_by", ())
    for left in reversed(range(CREATE_TRIES)):
        try:
            with explained(place, but=ERRORS if left else ()):
                catalog.create_namespace_if_not_exists(identifier[:-1])
                transaction = catalog.create_table_transaction(identifier, location=location, **what)
                with transaction, transaction.update_spec() as spec:
                    for column, transform in partition_by:
                        spec.add_field(column, transform)
                return
        except ERRORS:
            # Another process may have created the namespace or the table at the same moment.
            if loaded(place, catalog) is not None:
                return
