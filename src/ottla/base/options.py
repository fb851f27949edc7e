"""Declares settings with ``option()``; parsing, validation, DescribeConfigs, ``--set`` and the reference page derive from the declaration.

A table of settings is a class::

    class TopicOptions(Options):
        retention_ms: Long = option(7 * DAY_MS, at_least=-1, doc="How long ...")

A setting's name is its attribute's with dots, here ``retention.ms``, unless the declaration has another. An instance has one typed
attribute per setting. ``TopicOptions.of({"retention.ms": "1000"})`` parses Kafka's text forms; errors name the setting; missing keys take
the default. Between parts of the system values are text, as on the wire and in the store.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import IntEnum
from typing import Annotated, Any, ClassVar, Literal, Self, get_type_hints


class ConfigError(ValueError):
    """An invalid setting; the message has its name, the problem and the remedy."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name}: {problem}")
        self.name = name
        self.problem = problem


def suggestion(name: str, known: Iterable[str]) -> str:
    """``; did you mean NAME?`` with the nearest known name, or an empty string."""
    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


class ConfigType(IntEnum):
    """Types of settings, with the codes of DescribeConfigs v3+."""

    #: The type of settings that are kept without a declaration.
    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


#: How a broker setting can change: only at start, per broker at run time, or for the whole cluster at run time.
Scope = Literal["read-only", "per-broker", "cluster-wide"]


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """One declared setting."""

    name: str
    kind: ConfigType
    default: Any
    doc: str
    at_least: float | None = None
    at_most: float | None = None
    choices: tuple[str, ...] = ()
    scope: Scope = "read-only"
    #: For a topic setting: broker settings with its default (``log.retention.ms`` ...); the first that is set applies.
    synonyms: tuple[str, ...] = ()
    attribute: str = ""
    #: A regular expression for the whole text, and its description.
    form: tuple[str, str] | None = None
    #: Why no other value than the default is accepted, or empty.
    fixed: str = ""
    #: Whether ``listener.name.NAME.`` before the name sets it for one listener.
    per_listener: bool = False
    #: Whether ``listener.name.NAME.MECHANISM.`` before the name sets it for one SASL mechanism of a listener.
    per_mechanism: bool = False
    #: Checks the text, without repeating it in an error: for secrets. Raises: ValueError.
    check: Callable[[str], object] | None = None

    def parse(self, text: str) -> Any:
        """The typed value of Kafka's text form. Raises: ConfigError."""
        if self.form is not None and not re.fullmatch(self.form[0], text.strip()):
            raise ConfigError(self.name, f"expected {self.form[1]}, not {text!r}")
        value = self._typed(text.strip())
        self._refuse_out_of_range(value)
        if self.check is not None and value:
            try:
                self.check(value)
            except ValueError as error:
                raise ConfigError(self.name, str(error)) from None
        return value

    def _typed(self, text: str) -> Any:
        match self.kind:
            case ConfigType.BOOLEAN:
                if text.lower() not in ("true", "false"):
                    raise ConfigError(self.name, f"expected true or false, not {text!r}")
                return text.lower() == "true"
            case ConfigType.INT | ConfigType.LONG:
                try:
                    value = int(text)
                except ValueError:
                    raise ConfigError(self.name, f"expected a whole number, not {text!r}") from None
                bits = 31 if self.kind is ConfigType.INT else 63
                if not -(2**bits) <= value < 2**bits:
                    raise ConfigError(self.name, f"{value} does not fit in {bits + 1} bits")
                return value
            case ConfigType.DOUBLE:
                try:
                    return float(text)
                except ValueError:
                    raise ConfigError(self.name, f"expected a number, not {text!r}") from None
            case ConfigType.LIST:
                return tuple(part.strip() for part in text.split(",") if part.strip())
            case ConfigType.STRING | ConfigType.PASSWORD | ConfigType.UNKNOWN:
                return text

    def _refuse_out_of_range(self, value: Any) -> None:
        if self.at_least is not None and value < self.at_least:
            raise ConfigError(self.name, f"{value} is below the smallest allowed value, {self.at_least}")
        if self.at_most is not None and value > self.at_most:
            raise ConfigError(self.name, f"{value} is above the largest allowed value, {self.at_most}")
        for chosen in (value if self.kind is ConfigType.LIST else (value,)) if self.choices else ():
            if chosen not in self.choices:
                raise ConfigError(self.name, f"{chosen!r} is not one of {', '.join(self.choices)}")
        if self.fixed and value != self.default:
            raise ConfigError(self.name, f"{self.render(value)} cannot be honoured: {self.fixed}; leave it at {self.render(self.default)}")

    def render(self, value: Any) -> str | None:
        """The value in Kafka's text form; None for a secret."""
        match self.kind:
            case ConfigType.PASSWORD:
                return None
            case ConfigType.BOOLEAN:
                return "true" if value else "false"
            case ConfigType.LIST:
                return ",".join(value)
            case _:
                return "" if value is None else str(value)


def option(
    default: Any,
    *,
    doc: str,
    name: str = "",
    at_least: float | None = None,
    at_most: float | None = None,
    choices: tuple[str, ...] = (),
    scope: Scope = "read-only",
    synonyms: tuple[str, ...] = (),
    form: tuple[str, str] | None = None,
    fixed: str = "",
    per_listener: bool = False,
    per_mechanism: bool = False,
    check: Callable[[str], object] | None = None,
) -> Any:
    """Declares a setting. The annotation is the type; ``name``: Kafka's name, where it is not the attribute's with dots for underscores;
    ``fixed``: why only the default is accepted; ``per_listener``: a listener can have its own value; ``per_mechanism``: also a SASL
    mechanism of a listener; ``check``: raises ValueError for a wrong text.
    """
    return OptionSpec(
        name,
        ConfigType.UNKNOWN,
        default,
        doc,
        at_least,
        at_most,
        choices,
        scope,
        synonyms,
        form=form,
        fixed=fixed,
        per_listener=per_listener,
        per_mechanism=per_mechanism,
        check=check,
    )


#: A whole number of 64 bits; an ``int`` has 32.
Long = Annotated[int, ConfigType.LONG]
#: A text that is hidden.
Secret = Annotated[str, ConfigType.PASSWORD]
#: By the annotation of a setting.
_KINDS: dict[Any, ConfigType] = {
    bool: ConfigType.BOOLEAN,
    int: ConfigType.INT,
    Long: ConfigType.LONG,
    float: ConfigType.DOUBLE,
    str: ConfigType.STRING,
    Secret: ConfigType.PASSWORD,
    tuple[str, ...]: ConfigType.LIST,
}


class Options:
    """Base of a table of settings."""

    #: By Kafka's name, in the order of declaration, parents' first.
    SPECS: ClassVar[dict[str, OptionSpec]] = {}
    #: Kafka's settings without an effect in Ottla, with the reason; they are refused.
    ABSENT: ClassVar[Mapping[str, str]] = {}
    #: The message for an unknown name.
    UNKNOWN: ClassVar[str] = "unknown setting"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        hints = get_type_hints(cls, include_extras=True)
        specs = {name: spec for base in reversed(cls.__mro__[1:]) for name, spec in vars(base).get("SPECS", {}).items()}
        for attribute, spec in list(vars(cls).items()):
            if isinstance(spec, OptionSpec):
                name = spec.name or attribute.replace("_", ".")
                specs[name] = replace(spec, name=name, kind=_KINDS[hints[attribute]], doc=" ".join(spec.doc.split()), attribute=attribute)
                setattr(cls, attribute, spec.default)
        cls.SPECS = specs

    @classmethod
    def of(cls, texts: Mapping[str, str] | None = None, *, base: Self | None = None) -> Self:
        """Typed values of ``texts``, over ``base`` or the defaults. Raises: ConfigError for an unknown name or an invalid value."""
        options = cls()
        if base is not None:
            options.__dict__.update(base.__dict__)
        for name, text in (texts or {}).items():
            spec = cls.spec(name)
            options.__dict__[spec.attribute] = spec.parse(text)
        return options

    @classmethod
    def spec(cls, name: str) -> OptionSpec:
        """The declaration of a setting. Raises: ConfigError with the nearest known name."""
        spec = cls.SPECS.get(name)
        if spec is None:
            raise ConfigError(name, cls.ABSENT.get(name) or cls.UNKNOWN + suggestion(name, cls.SPECS))
        return spec

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(
            getattr(self, spec.attribute) == getattr(other, spec.attribute) for spec in self.SPECS.values()
        )

    __hash__ = None  # type: ignore[assignment]
