"""A setting is declared once, with ``option()``; parsing, refusal, DescribeConfigs, ``--set`` and the reference page are made from it.

A table of settings is a class::

    class TopicOptions(Options):
        retention_ms: int = option("retention.ms", 7 * DAY_MS, long=True, at_least=-1, doc="How long ...")

An instance holds typed values, one attribute each. ``TopicOptions.of({"retention.ms": "1000"})`` parses Kafka's text forms and refuses by
name; missing keys take the default. Values travel between parts of the system as text, as they do on the wire and in the store.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum
from typing import Any, ClassVar, Literal, Self, get_type_hints


class ConfigError(ValueError):
    """A setting that cannot be used: names it, says what is wrong and what would be right."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name}: {problem}")
        self.name = name
        self.problem = problem


def suggestion(name: str, known: Iterable[str]) -> str:
    """The nearest known name as a question, or nothing."""
    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


class Kind(IntEnum):
    """Types of settings, with the codes that DescribeConfigs v3+ sends."""

    #: Of what is kept without being declared.
    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


#: Who may change a broker setting, and when: only at start, per broker while it runs, or for the whole cluster while it runs.
Scope = Literal["read-only", "per-broker", "cluster-wide"]


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """One declared setting."""

    name: str
    kind: Kind
    default: Any
    doc: str
    at_least: float | None = None
    at_most: float | None = None
    choices: tuple[str, ...] = ()
    scope: Scope = "read-only"
    #: For a topic setting: broker settings that stand in for it, first match wins (``log.retention.ms`` ...).
    synonyms: tuple[str, ...] = ()
    attribute: str = ""
    #: A regular expression that the whole text matches, and what it stands for.
    form: tuple[str, str] | None = None

    def parse(self, text: str) -> Any:
        """The typed value of Kafka's text form. Raises ConfigError."""
        if self.form is not None and not re.fullmatch(self.form[0], text.strip()):
            raise ConfigError(self.name, f"expected {self.form[1]}, not {text!r}")
        value = self._typed(text.strip())
        self._refuse_out_of_range(value)
        return value

    def _typed(self, text: str) -> Any:
        match self.kind:
            case Kind.BOOLEAN:
                if text.lower() not in ("true", "false"):
                    raise ConfigError(self.name, f"expected true or false, not {text!r}")
                return text.lower() == "true"
            case Kind.INT | Kind.LONG:
                try:
                    value = int(text)
                except ValueError:
                    raise ConfigError(self.name, f"expected a whole number, not {text!r}") from None
                bits = 31 if self.kind is Kind.INT else 63
                if not -(2**bits) <= value < 2**bits:
                    raise ConfigError(self.name, f"{value} does not fit in {bits + 1} bits")
                return value
            case Kind.DOUBLE:
                try:
                    return float(text)
                except ValueError:
                    raise ConfigError(self.name, f"expected a number, not {text!r}") from None
            case Kind.LIST:
                return tuple(part.strip() for part in text.split(",") if part.strip())
            case Kind.STRING | Kind.PASSWORD | Kind.UNKNOWN:
                return text

    def _refuse_out_of_range(self, value: Any) -> None:
        if self.at_least is not None and value < self.at_least:
            raise ConfigError(self.name, f"{value} is below the smallest allowed value, {self.at_least}")
        if self.at_most is not None and value > self.at_most:
            raise ConfigError(self.name, f"{value} is above the largest allowed value, {self.at_most}")
        for chosen in (value if self.kind is Kind.LIST else (value,)) if self.choices else ():
            if chosen not in self.choices:
                raise ConfigError(self.name, f"{chosen!r} is not one of {', '.join(self.choices)}")

    def render(self, value: Any) -> str | None:
        """The value in Kafka's text form; None for a secret."""
        match self.kind:
            case Kind.PASSWORD:
                return None
            case Kind.BOOLEAN:
                return "true" if value else "false"
            case Kind.LIST:
                return ",".join(value)
            case _:
                return "" if value is None else str(value)


def option(
    name: str,
    default: Any,
    *,
    doc: str,
    long: bool = False,
    secret: bool = False,
    at_least: float | None = None,
    at_most: float | None = None,
    choices: tuple[str, ...] = (),
    scope: Scope = "read-only",
    synonyms: tuple[str, ...] = (),
    form: tuple[str, str] | None = None,
) -> Any:
    """Declare a setting under Kafka's name. The annotation gives the type; ``long`` tells 64 bits from 32, ``secret`` hides it."""
    kind = Kind.LONG if long else Kind.PASSWORD if secret else Kind.STRING
    return OptionSpec(name, kind, default, doc, at_least, at_most, choices, scope, synonyms, form=form)


_KINDS: dict[Any, Kind] = {bool: Kind.BOOLEAN, int: Kind.INT, float: Kind.DOUBLE, str: Kind.STRING, tuple[str, ...]: Kind.LIST}


class Options:
    """Base of a table of settings; see the module's theory."""

    #: By Kafka's name, in the order of declaration, parents' first.
    SPECS: ClassVar[dict[str, OptionSpec]] = {}
    #: Kafka's settings that would have no effect here, and why: refused with the reason, so that nobody counts on them.
    ABSENT: ClassVar[Mapping[str, str]] = {}
    #: What is said of a name that is none of them.
    UNKNOWN: ClassVar[str] = "unknown setting"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        hints = get_type_hints(cls)
        specs = {name: spec for base in reversed(cls.__mro__[1:]) for name, spec in vars(base).get("SPECS", {}).items()}
        for attribute, spec in list(vars(cls).items()):
            if isinstance(spec, OptionSpec):
                kind = spec.kind if spec.kind is not Kind.STRING else _KINDS[hints[attribute]]
                whole = OptionSpec(
                    spec.name, kind, spec.default, " ".join(spec.doc.split()), spec.at_least, spec.at_most,
                    spec.choices, spec.scope, spec.synonyms, attribute, spec.form,
                )  # fmt: skip
                specs[spec.name] = whole
                setattr(cls, attribute, spec.default)
        cls.SPECS = specs

    @classmethod
    def of(cls, texts: Mapping[str, str] | None = None, *, base: Self | None = None) -> Self:
        """Typed values: those given, over ``base`` (the defaults when None). Raises ConfigError for an unknown name or a bad value."""
        made = cls()
        if base is not None:
            made.__dict__.update(base.__dict__)
        for name, text in (texts or {}).items():
            spec = cls.spec(name)
            made.__dict__[spec.attribute] = spec.parse(text)
        return made

    @classmethod
    def spec(cls, name: str) -> OptionSpec:
        """The declaration of a setting. Raises ConfigError, with the nearest known name, when there is none."""
        found = cls.SPECS.get(name)
        if found is None:
            raise ConfigError(name, cls.ABSENT.get(name) or cls.UNKNOWN + suggestion(name, cls.SPECS))
        return found

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(
            getattr(self, spec.attribute) == getattr(other, spec.attribute) for spec in self.SPECS.values()
        )

    __hash__ = None  # type: ignore[assignment]
