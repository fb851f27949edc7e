"""Locations: directories of this machine, and prefixes of object stores. The one place that opens object stores.

    s3://BUCKET/PREFIX      Amazon S3, and stores with its API by the option `endpoint`; s3a:// is the same
    gs://BUCKET/PREFIX      Google Cloud Storage; gcs:// is the same
    az://CONTAINER/PREFIX   Azure Blob Storage; abfs://, and abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX

Credentials come from the environment variables of the clouds (AWS_*, GOOGLE_*, AZURE_*), from the machine's role, or from options. A secret
option is a reference (`env:VARIABLE`, `file:FILE`), which is resolved only where a store is opened. So a location can be printed, stored
and sent to other processes.

Requests are repeated after throttling (503), errors of the server (5xx) and timeouts, by obstore, for up to three minutes.

`put` with `only_new` or `replacing` is a conditional write. Stores that ignore the condition would let two writers overwrite each other, so
`require_conditional_writes` tries it, once for each start of a writer.
"""

import io
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ottla.base.paths import ADDRESS, OPENED, is_object_url, local_path, redacted
from ottla.base.units import MiB
from ottla.client import storage_options
from ottla.client.profiles import ProfileError, secret_from
from ottla.client.storage_options import CONNECTION, OPTIONS, kind_of

ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
#: Bytes of one request of a reader.
READ_BYTES = 4 * MiB
_MAGIC = re.compile(r"[*?\[]")
#: How stores name a missing bucket; for an object that is missing they have another code.
_NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound")


class StorageError(ValueError):
    """A location or an option that cannot be used; the message says what to do."""


class ConditionFailed(OSError):
    """Another process has written the object since it was read. Nothing was written."""


class StoreUnavailable(OSError):
    """The store did not answer, or with errors of its own, until the retries ended. The same request may succeed later."""


class Found(NamedTuple):
    """An object of a listing."""

    #: Relative to the location.
    name: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Location:
    """A directory or a prefix. Options that hold secrets are references, so its text and its fields show none."""

    url: str
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return self.url

    @property
    def is_local(self) -> bool:
        return ADDRESS.match(self.url) is None

    @property
    def path(self) -> Path:
        """Of a local directory."""
        assert self.is_local, "only directories of this machine have a path"
        return Path(self.url)

    def below(self, name: str) -> "Location":
        """A location in this one."""
        return Location(f"{self.url.rstrip('/')}/{name}", self.options)

    def storage_options(self) -> dict[str, str] | None:
        """All options with secrets resolved, by the names that deltalake and other libraries of the same store know; None if local.

        Raises: StorageError.
        """
        return None if self.is_local else _resolved(self)

    # -- objects; all raise OSError, with the object's address

    def read(self, name: str) -> tuple[bytes, str] | None:
        """An object, and its tag for `put`; None if there is none."""
        with _naming(self, name):
            try:
                found = _store(self).get(name)
            except FileNotFoundError:
                return None
            return bytes(found.bytes()), _tag(self, found.meta)

    def head(self, name: str) -> Found | None:
        """An object's size and time; None if there is none."""
        with _naming(self, name):
            try:
                return _found(_store(self).head(name))
            except FileNotFoundError:
                return None

    def put(self, name: str, data: bytes, *, only_new: bool = False, replacing: str | None = None) -> str:
        """Writes an object; returns its tag. Raises: ConditionFailed, if it exists, or has another tag than `replacing`."""
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        mode: Any = "create" if only_new else "overwrite" if replacing is None else {_tag_field(self): replacing}
        with _naming(self, name):
            try:
                return _tag(self, _store(self).put(name, data, mode=mode, use_multipart=False))
            except (AlreadyExistsError, PreconditionError, FileNotFoundError) as error:
                if isinstance(error, FileNotFoundError) and (replacing is None or _NO_BUCKET.search(str(error))):
                    raise
                raise ConditionFailed(f"{self.below(name)} was written by another process") from error
            except NotImplementedError as error:
                raise StorageError(_unconditional(self)) from error

    def replace(self, name: str, data: bytes, tag: str | None) -> str:
        """Replaces the version of an object with this tag, or writes it if it is new (None); returns the new tag.

        No two writers may write the same data: if the answer to a request that was carried out is lost, the object is compared.
        Raises: ConditionFailed if another writer has written it; StorageError if the store ignores conditions.
        """
        try:
            return self.put(name, data, only_new=tag is None, replacing=tag)
        except OSError:
            # Another writer's tag is not taken over: a later write would replace its object.
            found = self.read(name)
            if found is not None and found[0] == data:
                return found[1]
            raise

    def upload(self, name: str, path: Path) -> None:
        """Writes an object from a file, in parts. It is visible when it is complete."""
        with _naming(self, name):
            _store(self).put(name, path)

    def rename(self, name: str, new: str) -> None:
        """Copies an object, then removes it: not atomic, and harmless if it is repeated."""
        with _naming(self, name):
            _store(self).copy(name, new)
        # The answer may be lost, and the repetition finds nothing.
        self.remove([name])

    def remove(self, names: Iterable[str]) -> None:
        """Removes objects; missing ones are no error."""
        for name in names:
            with _naming(self, name):
                try:
                    _store(self).delete(name)
                except FileNotFoundError:
                    continue

    def list(self, below: str = "") -> Iterator[Found]:
        """The objects below, at any depth."""
        with _naming(self, below):
            for chunk in _store(self).list(below or None):
                for one in chunk:
                    yield _found(one)

    def children(self, below: str) -> dict[str, bool]:
        """The names directly below, and whether each is a prefix of others."""
        with _naming(self, below):
            found = _store(self).list_with_delimiter(below or None)
        prefixes = {str(one).rstrip("/").rpartition("/")[2]: True for one in found["common_prefixes"]}
        # An object named like the prefix itself is a marker of a directory.
        objects = {str(one["path"]).rpartition("/")[2]: False for one in found["objects"] if str(one["path"]) != below}
        return {**objects, **prefixes}

    def holds(self, below: str) -> bool:
        """Whether there is an object below: what a directory's existence is on a disk."""
        if self.is_local:
            return (self.path / below).exists()
        return next(self.list(below), None) is not None

    def open(self, name: str) -> io.BufferedReader:
        """Reads an object, from any position. Raises: OSError, also if it is replaced meanwhile."""
        with _naming(self, name):
            meta = _store(self).head(name)
        return io.BufferedReader(_ObjectReader(self, name, int(meta["size"]), meta["e_tag"]), READ_BYTES)

    def require_conditional_writes(self) -> None:
        """Raises: StorageError if the store ignores conditions of writes."""
        if self.is_local:
            return
        name = f".ottla-probe-{uuid.uuid4()}"
        tag = self.put(name, b"", only_new=True)
        try:
            for condition in ({"only_new": True}, {"replacing": _other_tag(self)} if tag else {"only_new": True}):
                try:
                    self.put(name, b"", **condition)
                except ConditionFailed:
                    continue
                raise StorageError(_unconditional(self))
        finally:
            self.remove([name])


class _ObjectReader(io.RawIOBase):
    """Requests of one version of an object."""

    def __init__(self, location: Location, name: str, size: int, tag: str | None) -> None:
        self._location, self._name, self._size, self._tag = location, name, size, tag
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def readall(self) -> bytes:
        """The default would request 8 KB at a time."""
        parts = []
        while data := self.read(READ_BYTES):
            parts.append(data)
        return b"".join(parts)

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self._size - self._at)
        if wanted <= 0:
            return 0
        from obstore.exceptions import PreconditionError

        options: dict[str, Any] = {"range": (self._at, self._at + wanted)}
        if self._tag:
            options["if_match"] = self._tag
        with _naming(self._location, self._name):
            try:
                data = _store(self._location).get(self._name, options=options).bytes()
            except (PreconditionError, FileNotFoundError):
                raise OSError(f"{self._location.below(self._name)} was replaced while it was read; start again") from None
        buffer[: len(data)] = memoryview(data)
        self._at += len(data)
        return len(data)


# -- names and options


def location(text: "str | Path | Location", options: Mapping[str, str] | None = None) -> Location:
    """The location of a path or an address. Raises: StorageError; NotLocal for other addresses."""
    if isinstance(text, Location):
        return text
    if not isinstance(text, str) or not is_object_url(text):
        return Location(local_path(str(text)))
    address = ADDRESS.match(text)
    assert address is not None, "checked above"
    scheme, rest = OPENED[address["scheme"].lower()], address["rest"].rstrip("/")
    bucket, _, _ = rest.partition("/")
    if not bucket:
        raise StorageError(f"{text} names no bucket; write {scheme}://BUCKET/PREFIX")
    if "@" in bucket and not scheme.startswith("abfs"):
        raise StorageError(f"{redacted(text)}: credentials do not belong into an address; use the environment variables of the cloud")
    if find_spec("obstore") is None:
        raise StorageError(f"{scheme}://{rest}: object stores need obstore: pip install 'ottla[lake]'")
    return Location(f"{scheme}://{rest}", tuple(sorted(checked_options(scheme, options or {}).items())))


def checked_options(scheme: str, options: Mapping[str, str]) -> dict[str, str]:
    """The options by their short names. Raises: StorageError for an unknown name, and for a secret that is not a reference."""
    try:
        return storage_options.checked_options(scheme, options)
    except storage_options.StorageOptionError as error:
        raise StorageError(str(error)) from None


def _resolved(place: Location) -> dict[str, str]:
    kind = kind_of(place.url.partition(":")[0])
    given: dict[str, str] = {}
    for name, value in place.options:
        try:
            given[name] = secret_from(name, value)
        except ProfileError as error:
            raise StorageError(f"storage option {name}: {error.problem.removesuffix('; it should be the password')}") from None
    if kind == "s3":
        _refuse_foreign_token(place, given)
        _add_variables(given)
    endpoint = given.get("endpoint", "")
    if urlsplit(endpoint).scheme == "http" and given.get("allow_http", "").lower() != "true":
        raise StorageError(f"{place}: the endpoint {endpoint} is not encrypted; if that is meant, set the storage option allow_http=true")
    return {OPTIONS[kind].get(name, name): value for name, value in given.items()}


def _refuse_foreign_token(place: Location, given: Mapping[str, str]) -> None:
    """obstore and deltalake add the session token of the environment to keys of options, and the store refuses it with them."""
    key = given.get("access_key_id")
    if (
        key is not None
        and "session_token" not in given
        and os.environ.get("AWS_SESSION_TOKEN")
        and key != os.environ.get("AWS_ACCESS_KEY_ID")
    ):
        raise StorageError(
            f"{place}: AWS_SESSION_TOKEN is not the token of the storage option access_key_id; unset the variable, or if it is, set"
            " session_token=env:AWS_SESSION_TOKEN"
        )


def _add_variables(given: dict[str, str]) -> None:
    """Variables that obstore and deltalake read differently."""
    for name, variables in (("endpoint", ENDPOINT_VARIABLES), ("region", REGION_VARIABLES), ("allow_http", ("AWS_ALLOW_HTTP",))):
        value = next((os.environ[one] for one in variables if os.environ.get(one)), None)
        if value is not None:
            given.setdefault(name, value)
    if "endpoint" in given:
        given.setdefault("region", "us-east-1")


@lru_cache(maxsize=64)
def _store(place: Location) -> Any:
    """Raises: StorageError."""
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    config: Any = _resolved(place)
    client: Any = {name: config.pop(name) for name in CONNECTION if name in config}
    if "allow_http" in client:
        client["allow_http"] = client["allow_http"].lower() == "true"
    more: dict[str, Any] = {}
    if place.url.startswith("s3:") and os.environ.get("AWS_PROFILE") and "aws_access_key_id" not in config:
        more["credential_provider"] = _profile_credentials(place)
    try:
        return from_url(place.url, config=config, client_options=client, **more)
    except (BaseError, ValueError, OSError) as error:
        raise StorageError(f"{place}: {plain(str(error))}") from None


def _profile_credentials(place: Location) -> Any:
    """The keys of AWS_PROFILE."""
    try:
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise StorageError(
            f"{place}: AWS_PROFILE needs boto3: pip install boto3, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from None
    try:
        return Boto3CredentialProvider()
    except (BotoCoreError, ValueError) as error:
        raise StorageError(f"{place}: AWS_PROFILE {os.environ['AWS_PROFILE']}: {plain(str(error))}") from None


def _tag_field(place: Location) -> str:
    """What a conditional write names: Google Cloud Storage compares generations, the others entity tags."""
    return "version" if place.url.startswith("gs:") else "e_tag"


def _tag(place: Location, meta: Any) -> str:
    return str(meta[_tag_field(place)] or "")


def _other_tag(place: Location) -> str:
    """A tag that no object has. A generation is the time of the write, in microseconds."""
    return "1" if place.url.startswith("gs:") else f'"{uuid.uuid4().hex}"'


def _found(meta: Any) -> Found:
    return Found(str(meta["path"]), int(meta["size"]), int(meta["last_modified"].timestamp() * 1e9))


def _unconditional(place: Location) -> str:
    return (
        f"the store of {place} does not make conditional writes (If-None-Match and If-Match), so two writers would overwrite each other's"
        " commits; use a store that makes them (Amazon S3, Google Cloud Storage, Azure and recent MinIO do), or a local directory"
    )


# -- errors


@contextmanager
def _naming(place: Location, name: str) -> Iterator[None]:
    """Converts errors of obstore to OSError with the object's address, without secrets."""
    from obstore.exceptions import BaseError

    try:
        yield
    except (ConditionFailed, StorageError):
        raise
    except (BaseError, FileNotFoundError, PermissionError) as error:
        if isinstance(error, FileNotFoundError) and not _NO_BUCKET.search(str(error)):
            raise FileNotFoundError(f"{place.below(name) if name else place}: no such object") from None
        kind = StoreUnavailable if gave_up(str(error)) else OSError
        raise kind(f"{place.below(name) if name else place}: {plain(str(error))}") from None


def gave_up(text: str) -> bool:
    """Whether an error of obstore or deltalake ended retries, which only temporary problems have."""
    return re.search(r"after \d+ retries, max_retries", _joined(text)) is not None


def _joined(text: str) -> str:
    """An error in one line, without colours: deltalake breaks lines between words."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|↳", " ", text).split())


def plain(text: str) -> str:
    """An error of a store in one line: without colours, without signatures in addresses, and with the store's own words if it has some."""
    text = _joined(text)
    text = re.sub(r"(?i)([?&](?:sig|signature|x-amz-[a-z-]+|x-goog-[a-z-]+)=)[^&\s]+", r"\1(hidden)", text)
    code, message = re.search(r"<Code>(.*?)</Code>", text), re.search(r"<Message>(.*?)</Message>", text, re.DOTALL)
    if code:
        text = f"{code[1]}{f': {message[1]}' if message else ''}"
    return text.partition("Debug source:")[0].strip()


# -- patterns


def matching(pattern: Location) -> tuple[Location, list[Found]]:
    """The bucket of an address, and the objects that it names: an object, a prefix, or a pattern with `*`, `?`, `[...]` and `**`."""
    scheme, _, rest = pattern.url.partition("://")
    bucket, _, key = rest.partition("/")
    root = Location(f"{scheme}://{bucket}", pattern.options)
    if magic := _MAGIC.search(key):
        fixed = key[: magic.start()].rpartition("/")[0]
        wanted = re.compile(_pattern(key))
        return root, sorted(one for one in root.list(fixed) if wanted.fullmatch(one.name))
    single = root.head(key) if key else None
    return root, [single] if single is not None else sorted(root.list(key))


def _pattern(glob: str) -> str:
    """A regular expression; `*` and `?` do not match `/`, `**/` does."""
    words = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", glob)
    return "".join(
        words.get(part) or (part.replace("[!", "[^") if part.startswith("[") and part.endswith("]") else re.escape(part)) for part in parts
    )
