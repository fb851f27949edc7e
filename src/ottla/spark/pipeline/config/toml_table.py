"""A TOML table with typed look-ups that refuse by name, and say where in the file the name stands."""

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ottla.base.options import suggestion
from ottla.base.paths import NotLocal, local_path
from ottla.client.options import address_problem
from ottla.spark.pipeline.config.toml_positions import places_in

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class PipelineError(ValueError):
    """What is wrong with a pipeline: `where` is its file, with the line if known; `key` the dotted key, or empty."""

    def __init__(self, where: str, key: str, problem: str) -> None:
        super().__init__(f"{where}: {key}: {problem}" if key else f"{where}: {problem}")
        self.where = where
        self.key = key
        self.problem = problem


class Table:
    """A TOML table with typed look-ups; `finish` refuses what nobody asked for."""

    def __init__(self, values: Mapping[str, Any], prefix: str, path: Path, text: str, variables: Mapping[str, str]) -> None:
        self.values = values
        self.prefix = prefix
        self.path = path
        self.source = text
        self.variables = variables
        self.asked: list[str] = []

    def fail(self, name: str, problem: str) -> PipelineError:
        key = f"{self.prefix}{name}"
        return PipelineError(line_of(self.path, self.source, key), key, problem)

    def misspelt(self, *wanted: str) -> PipelineError | None:
        """An error for a key that nobody has asked for and that is nearly one of `wanted`, which is not there. `finish` would tell of it,
        and is not reached where a key is required.
        """
        absent = [name for name in wanted if name not in self.values]
        for key in self.values:
            if key not in self.asked and (near := get_close_matches(key.lower(), absent, n=1)):
                return self.fail(key, f"unknown key; did you mean {near[0]}?")
        return None

    def missing(self, name: str, problem: str) -> PipelineError:
        """An error for a key that must be there, or for the one that is meant to be it."""
        return self.misspelt(name) or self.fail(name, f"is missing; {problem}")

    def only(self, known: Iterable[str]) -> None:
        """Raises: PipelineError for a key that is not `known`, before any other is looked at."""
        for name in self.values:
            if name not in known:
                raise self.fail(name, f"unknown key{suggestion(name, known)}; known here are {', '.join(sorted(set(known)))}")

    def get(self, name: str) -> Any:
        """The raw value; tables in it are filled when they are looked into."""
        self.asked.append(name)
        value = self.values.get(name)
        return value if isinstance(value, dict) else self.filled(name, value)

    def beside(self, name: str, file: str) -> Path:
        """A file that belongs to the pipeline: its path is relative to the pipeline's file."""
        path = self.path.parent / self.local(name, file)
        if not path.is_file():
            raise self.fail(name, f"there is no file {path}; the path is relative to the pipeline's file")
        return path

    def lines(self, name: str) -> tuple[tuple[int, int], ...]:
        """Which character of a text, with its variables filled in, begins which line of the file."""
        place = places_in(self.source).find(f"{self.prefix}{name}")
        value = self.values.get(name)
        if place is None or not isinstance(value, str):
            return ()
        # Before an index of the text as written, variables have made it longer by so much.
        grown = [(match.end(), len(self._variable(name, match)) - len(match[0])) for match in VARIABLE.finditer(value)]
        return tuple((index + sum(more for end, more in grown if end <= index), line) for index, line in place.breaks)

    def filled(self, name: str, value: Any) -> Any:
        """`value` with its variables filled in, in texts and lists of texts."""
        if isinstance(value, str):
            return VARIABLE.sub(lambda match: self._variable(name, match), value)
        if isinstance(value, list):
            return [self.filled(name, item) for item in value]
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

    def place(self, name: str, default: str | None = None, *, required: str = "") -> Any:
        """The path of a local file or directory, as text."""
        value = self.text(name, default, required=required)
        return None if value is None else self.local(name, value)

    def local(self, name: str, value: str) -> str:
        """Raises: PipelineError for an address such as s3://bucket/x."""
        try:
            return local_path(value)
        except NotLocal as error:
            raise self.fail(name, str(error)) from None

    def brokers(self, name: str, default: str | None = None) -> Any:
        """Addresses of brokers, HOST:PORT with commas between."""
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
        given = self.get(name)
        if not isinstance(given, dict | None):
            raise self.fail(name, f"expected a table, such as {example}, not {given!r}")
        found = {}
        for inner, value in (given or {}).items():
            if not isinstance(value, str | int | float | bool):
                raise self.fail(f"{name}.{inner}", f"expected a text, a number, true or false, not {value!r}")
            found[inner] = str(value).lower() if isinstance(value, bool) else str(self.filled(f"{name}.{inner}", value))
        return found

    def table(self, name: str, holds: str, *, required: str = "") -> "Table":
        """The table `name`; `holds` says what is in it, for those who gave something else."""
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
        self.only(self.asked)


#: What other tools call a choice of ours.
SYNONYMS = {"upsert": "merge", "overwrite": "replace", "complete": "replace"}


def line_of(path: Path, text: str, key: str) -> str:
    """The file, with the line of `key` or of the table that should hold it."""
    place = places_in(text).find(key)
    return f"{path}:{place.line}" if place is not None else str(path)
