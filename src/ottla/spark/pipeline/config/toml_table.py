"""A TOML table with typed lookups. Errors name the key and its line in the file."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ottla.base.options import suggestion
from ottla.base.paths import OPENED, NotLocal, is_object_url
from ottla.base.paths import local_path as parse_local_path
from ottla.client.options import address_problem
from ottla.client.storage_options import kind_of
from ottla.lake.storage import StorageError, location
from ottla.spark.pipeline.config.toml_positions import key_positions

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class PipelineError(ValueError):
    """An error in a pipeline: `where` is its file, with the line if known; `key` is the dotted key, or empty."""

    def __init__(self, where: str, key: str, problem: str) -> None:
        super().__init__(f"{where}: {key}: {problem}" if key else f"{where}: {problem}")
        self.where = where
        self.key = key
        self.problem = problem


@dataclass(frozen=True, slots=True)
class StorageDefaults:
    """Options of object stores for tables without their own."""

    #: `[storage]` of the file; None without one.
    of_file: Mapping[str, str] | None = None
    #: Those of the profile, by kind of store.
    of_profile: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def of(self, url: str) -> Mapping[str, str]:
        """The options for the object store of an address."""
        if self.of_file is not None:
            return self.of_file
        return self.of_profile.get(kind_of(OPENED[url.partition(":")[0].lower()]), {})


class Table:
    """A TOML table with typed lookups. `finish` rejects keys that were not read."""

    def __init__(self, values: Mapping[str, Any], prefix: str, path: Path, text: str, variables: Mapping[str, str]) -> None:
        self.values = values
        self.prefix = prefix
        self.path = path
        self.source = text
        self.variables = variables
        self.read_keys: list[str] = []

    def fail(self, name: str, problem: str) -> PipelineError:
        key = f"{self.prefix}{name}"
        return PipelineError(line_of(self.path, self.source, key), key, problem)

    def misspelled(self, *expected: str) -> PipelineError | None:
        """An error for an unread key that is close to one of `expected`, if that is missing.

        `finish` would report it, but is not reached if a required key is missing.
        """
        absent = [name for name in expected if name not in self.values]
        for key in self.values:
            if key not in self.read_keys and (near := get_close_matches(key.lower(), absent, n=1)):
                return self.fail(key, f"unknown key; did you mean {near[0]}?")
        return None

    def missing(self, name: str, problem: str) -> PipelineError:
        """An error for a missing key, or for a misspelled one."""
        return self.misspelled(name) or self.fail(name, f"is missing; {problem}")

    def allow_only(self, known: Iterable[str]) -> None:
        """Raises: PipelineError for an unknown key."""
        for name in self.values:
            if name not in known:
                raise self.fail(name, f"unknown key{suggestion(name, known)}; known here are {', '.join(sorted(set(known)))}")

    def get(self, name: str) -> Any:
        """The value with variables substituted, except in tables, which substitute on their own lookups."""
        self.read_keys.append(name)
        value = self.values.get(name)
        return value if isinstance(value, dict) else self.substituted(name, value)

    def companion_file(self, name: str, file: str) -> Path:
        """A file with a path relative to the pipeline's file."""
        path = self.path.parent / self.require_local(name, file)
        if not path.is_file():
            raise self.fail(name, f"there is no file {path}; the path is relative to the pipeline's file")
        return path

    def lines(self, name: str) -> tuple[tuple[int, int], ...]:
        """(index in the text after substitution of variables, line of the file) for the first character of each line."""
        position = key_positions(self.source).find(f"{self.prefix}{name}")
        value = self.values.get(name)
        if position is None or not isinstance(value, str):
            return ()
        # By how many characters substitution has grown the text up to an index.
        grown = [(match.end(), len(self._variable(name, match)) - len(match[0])) for match in VARIABLE.finditer(value)]
        return tuple((index + sum(more for end, more in grown if end <= index), line) for index, line in position.breaks)

    def substituted(self, name: str, value: Any) -> Any:
        """`value` with variables substituted in texts and lists of texts."""
        if isinstance(value, str):
            return VARIABLE.sub(lambda match: self._variable(name, match), value)
        if isinstance(value, list):
            return [self.substituted(name, item) for item in value]
        return value

    def _variable(self, name: str, match: re.Match[str]) -> str:
        value = self.variables.get(match[1], match[2])
        if value is None:
            raise self.fail(name, f"${{{match[1]}}} has no value; give one with --var {match[1]}=VALUE, or in the environment")
        return value

    def text(self, name: str, default: str | None = None, *, required: str = "", blank: bool = False) -> Any:
        value = self.get(name)
        if value is None and required and default is None:
            raise self.missing(name, required)
        if value is None:
            return default
        if not isinstance(value, str) or not (blank or value.strip()):
            raise self.fail(name, f"expected text, not {value!r}")
        return value

    def local_path(self, name: str, default: str | None = None, *, required: str = "") -> Any:
        """The path of a local file or directory, as text."""
        value = self.text(name, default, required=required)
        return None if value is None else self.require_local(name, value)

    def location(self, name: str, defaults: StorageDefaults, *, required: str = "") -> tuple[Any, tuple[tuple[str, str], ...]]:
        """A directory of this machine, or an address of an object store, as text; and the store's options: `storage` of this table, else
        `defaults`.
        """
        value = self.text(name, required=required)
        own = self.settings("storage", '{ endpoint = "https://minio.example:9000" }') if "storage" in self.values else None
        self.read_keys.append("storage")
        if value is None or not is_object_url(value):
            if own is not None:
                raise self.fail(
                    "storage", f"is for addresses of object stores, and {name} is {'a local directory' if value else 'not set'}"
                )
            return None if value is None else self.require_local(name, value), ()
        try:
            found = location(value, defaults.of(value) if own is None else own)
        except StorageError as error:
            if not str(error).startswith("storage option"):
                raise self.fail(name, str(error)) from None
            # An option of this table, else one at the top of the file.
            here = self if own is not None else Table({}, "", self.path, self.source, self.variables)
            raise here.fail("storage", str(error)) from None
        return found.url, found.options

    def require_local(self, name: str, value: str) -> str:
        """Raises: PipelineError for an address such as s3://bucket/x."""
        try:
            return parse_local_path(value)
        except NotLocal as error:
            raise self.fail(name, str(error)) from None

    def brokers(self, name: str, default: str | None = None) -> Any:
        """Addresses of brokers: HOST:PORT, separated by commas."""
        value = self.text(name, default)
        if value is not None and (problem := address_problem(value)):
            raise self.fail(name, problem)
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.fail(name, f"expected a list of texts, not {value!r}")
        return tuple(value)

    def choice(self, name: str, choices: tuple[str, ...], default: str | None = None, *, required: str = "") -> Any:
        value = self.text(name, default, required=required)
        if value is not None and value not in choices:
            ours = SYNONYMS.get(value.lower())
            near = f"; did you mean {ours}?" if ours in choices else suggestion(value, choices)
            raise self.fail(name, f"expected {' or '.join(choices)}, not {value!r}{near}")
        return value

    def number(self, name: str, default: int) -> int:
        value = self.get(name)
        if value is None:
            return default
        if type(value) is not int or value < 1:
            raise self.fail(name, f"expected a whole number above 0, not {value!r}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fail(name, f"expected true or false, not {value!r}")
        return value

    def settings(self, name: str, example: str) -> dict[str, str]:
        """A table of names and plain values, as texts."""
        table = self.get(name)
        if not isinstance(table, dict | None):
            raise self.fail(name, f"expected a table, such as {example}, not {table!r}")
        return {inner: self.plain(f"{name}.{inner}", value) for inner, value in (table or {}).items()}

    def plain(self, name: str, value: Any) -> str:
        """A plain value as text."""
        if not isinstance(value, str | int | float | bool):
            raise self.fail(name, f"expected a text, a number, true or false, not {value!r}")
        return str(value).lower() if isinstance(value, bool) else str(self.substituted(name, value))

    def table(self, name: str, holds: str, *, required: str = "") -> "Table":
        """The table `name`; `holds` describes its content for the error message."""
        value = self.get(name)
        if value is None and required:
            raise self.missing(name, required)
        if not isinstance(value, dict | None):
            raise self.fail(name, f"expected a table with {holds}, not {value!r}")
        return Table(value or {}, f"{self.prefix}{name}.", self.path, self.source, self.variables)

    def tables(self, name: str) -> Iterator["Table"]:
        value = self.get(name)
        if not isinstance(value, list | None) or not all(isinstance(item, dict) for item in value or ()):
            raise self.fail(name, f"expected [[{name}]] tables")
        for index, item in enumerate(value or ()):
            yield Table(item, f"{self.prefix}{name}[{index}].", self.path, self.source, self.variables)

    def finish(self) -> None:
        self.allow_only(self.read_keys)


#: Other tools' names for our choices.
SYNONYMS = {"upsert": "merge", "overwrite": "replace", "complete": "replace"}


def line_of(path: Path, text: str, key: str) -> str:
    """The file, with the line of `key` or of its table."""
    position = key_positions(text).find(key)
    return f"{path}:{position.line}" if position is not None else str(path)
