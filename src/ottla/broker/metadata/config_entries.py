"""Settings as DescribeConfigs returns them: value, source and synonyms.

Source: KIP-133, KIP-226 (synonyms), KIP-569 (types and documentation).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from ottla.base.log_levels import LEVELS, LOGGERS, ROOT, LogLevel
from ottla.base.options import ConfigType, OptionSpec
from ottla.broker.context import BrokerContext
from ottla.broker.metadata.configs import (
    LISTENER_PREFIX,
    SPECS_BY_NAME,
    UNITS_MS,
    ClientMetricsOptions,
    GroupOptions,
    broker_spec,
    listener_setting,
)
from ottla.log.options import TopicOptions
from ottla.store.layout import DEFAULT_ENTITY
from ottla.wire import errors
from ottla.wire.errors import KafkaError

#: Defaults of broker settings that mean no value: returned as null without a synonym, as in Kafka.
UNSET = (None, "", ())
#: Resource types with settings, with DescribeConfigs' codes.
TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
#: Names that only tests use: not described unless they are set.
INTERNAL = "internal."


class ConfigSource(IntEnum):
    """Source of a value, with DescribeConfigs' codes."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


@dataclass(frozen=True, slots=True)
class Synonym:
    """A setting that can provide the value, and its value; None for a secret."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting; synonyms are in order of precedence, the effective one first."""

    name: str
    value: str | None
    source: ConfigSource
    kind: ConfigType
    doc: str
    read_only: bool
    synonyms: tuple[Synonym, ...]

    @property
    def sensitive(self) -> bool:
        return self.kind in (ConfigType.PASSWORD, ConfigType.UNKNOWN)


def no_settings(resource_type: int) -> KafkaError:
    """The error for a resource whose type has no settings here."""
    return errors.InvalidRequest(f"resources of type {resource_type} have no settings")


def topic_entries(context: BrokerContext, overrides: Mapping[str, str]) -> Iterator[ConfigEntry]:
    """All settings of a topic with these overrides."""
    for spec in sorted(TopicOptions.SPECS.values(), key=lambda spec: spec.name):
        synonyms = []
        if spec.name in overrides:
            synonyms.append(Synonym(spec.name, _shown(spec, overrides[spec.name]), ConfigSource.TOPIC))
        for name in spec.synonyms:
            synonyms.extend(_broker_synonyms(context, name, convert_to=spec))
        if spec.name.startswith(INTERNAL) and not synonyms:
            continue
        synonyms.append(Synonym(spec.synonyms[0] if spec.synonyms else spec.name, spec.render(spec.default), ConfigSource.DEFAULT))
        yield _entry(spec, synonyms, read_only=False)


def group_entries(context: BrokerContext, overrides: Mapping[str, str]) -> Iterator[ConfigEntry]:
    """All settings of a group with these overrides, whether or not the group exists."""
    for spec in sorted(GroupOptions.SPECS.values(), key=lambda spec: spec.name):
        own = [Synonym(spec.name, overrides[spec.name], ConfigSource.GROUP)] if spec.name in overrides else []
        shared = [synonym for name in spec.synonyms for synonym in _broker_synonyms(context, name)]
        yield _entry(spec, [*own, *shared, Synonym(spec.synonyms[0], spec.render(spec.default), ConfigSource.DEFAULT)], read_only=False)


def client_metrics_entries(overrides: Mapping[str, str]) -> Iterator[ConfigEntry]:
    """The settings of a subscription of client metrics, whether or not it exists."""
    for spec in sorted(ClientMetricsOptions.SPECS.values(), key=lambda spec: spec.name):
        own = [Synonym(spec.name, overrides[spec.name], ConfigSource.CLIENT_METRICS)] if spec.name in overrides else []
        yield _entry(spec, [*own, Synonym(spec.name, spec.render(spec.default), ConfigSource.DEFAULT)], read_only=False)


def logger_entries(context: BrokerContext) -> Iterator[ConfigEntry]:
    """The levels in effect of the loggers of this broker's process."""
    for name, about in LOGGERS.items():
        text = level_text(context.log_levels, name)
        yield ConfigEntry(
            name, text, ConfigSource.DYNAMIC_BROKER_LOGGER, ConfigType.STRING, f"Level of {about}.", read_only=False, synonyms=()
        )


def level_text(levels: Mapping[str, LogLevel], name: str) -> str:
    """The level in effect of a logger: its own, or that of the next logger above it."""
    while name not in levels and name != ROOT:
        name = name.rpartition(".")[0] or ROOT
    level = levels[name]
    return next(text for text, value in LEVELS.items() if value >= level and text != "TRACE")


def broker_entries(context: BrokerContext) -> Iterator[ConfigEntry]:
    """All settings of this broker, and those given or stored under names that it does not have."""
    for name, spec in sorted({**SPECS_BY_NAME, **_of_listeners(context)}.items()):
        synonyms = list(_broker_synonyms(context, name))
        if name.startswith(INTERNAL) and not synonyms:
            continue
        # A listener without its own value has that of the broker.
        own = listener_setting(name)
        plain = name if own is None else own.spec.name
        if plain != name:
            synonyms.extend(_broker_synonyms(context, plain))
        if spec.default not in UNSET:
            synonyms.append(Synonym(plain, spec.render(spec.default), ConfigSource.DEFAULT))
        yield _entry(spec, synonyms, read_only=spec.scope == "read-only")
    layers = ((str(context.broker_id), ConfigSource.DYNAMIC_BROKER), (DEFAULT_ENTITY, ConfigSource.DYNAMIC_DEFAULT_BROKER))
    strange = dict.fromkeys(context.settings.plugins, ConfigSource.STATIC_BROKER)
    strange |= {name: source for entity, source in reversed(layers) for name in context.image.overrides("brokers", entity)}
    for name in sorted(strange.keys() - SPECS_BY_NAME.keys()):
        if broker_spec(name) is None:
            yield _strange(name, strange[name])


def _of_listeners(context: BrokerContext) -> dict[str, OptionSpec]:
    """Settings of single listeners that are set."""
    overrides = (context.image.overrides("brokers", entity) for entity in (DEFAULT_ENTITY, str(context.broker_id)))
    names = [name for texts in (context.settings.texts, *overrides) for name in texts if name.startswith(LISTENER_PREFIX)]
    return {name: spec for name in names if (spec := broker_spec(name)) is not None}


def cluster_entries(context: BrokerContext) -> Iterator[ConfigEntry]:
    """Dynamic settings of the whole cluster."""
    for name, text in sorted(context.image.overrides("brokers", DEFAULT_ENTITY).items()):
        spec = broker_spec(name)
        if spec is None:
            yield _strange(name, ConfigSource.DYNAMIC_DEFAULT_BROKER)
        else:
            yield _entry(
                spec, [Synonym(name, _shown(spec, text), ConfigSource.DYNAMIC_DEFAULT_BROKER)], read_only=spec.scope == "read-only"
            )


def _strange(name: str, source: ConfigSource) -> ConfigEntry:
    """A setting under a name that this broker does not have; it may be a plugin's secret, so the value is null, as in Kafka."""
    return ConfigEntry(
        name, None, source, ConfigType.UNKNOWN, "This broker does not know this setting.", False, (Synonym(name, None, source),)
    )


def _entry(spec: OptionSpec, synonyms: list[Synonym], *, read_only: bool) -> ConfigEntry:
    first = synonyms[0] if synonyms else Synonym(spec.name, None, ConfigSource.DEFAULT)
    return ConfigEntry(spec.name, first.value, first.source, spec.kind, spec.doc, read_only, tuple(synonyms))


def _broker_synonyms(context: BrokerContext, name: str, convert_to: OptionSpec | None = None) -> Iterator[Synonym]:
    layers = (
        (context.image.overrides("brokers", str(context.broker_id)), ConfigSource.DYNAMIC_BROKER),
        (context.image.overrides("brokers", DEFAULT_ENTITY), ConfigSource.DYNAMIC_DEFAULT_BROKER),
        (context.settings.texts, ConfigSource.STATIC_BROKER),
    )
    for texts, source in layers:
        if name in texts:
            text = texts[name]
            unit = UNITS_MS.get(name)
            if convert_to is not None and unit is not None:
                text = str(max(-1, int(text) * unit))
            spec = convert_to or broker_spec(name)
            assert spec is not None, f"{name} is a setting"
            yield Synonym(name, _shown(spec, text), source)


def _shown(spec: OptionSpec, text: str) -> str | None:
    return None if spec.kind is ConfigType.PASSWORD else text
