"""``server.properties`` files, ``KAFKA_*`` variables, and Kafka settings that Ottla does not have.

A file that starts Kafka also starts Ottla, unless it has a setting that is refused. ``ottla.broker.metadata.kafka_settings`` says which
settings are in force, which are accepted without meaning, and which are refused because ignoring them would weaken what the operator
configured, such as encryption or access control. Names that neither Ottla nor Kafka has are kept for plugins and tools, with a warning.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ottla.base.options import ConfigError
from ottla.broker.metadata.kafka_settings import ALIASES, Treatment, asks_for_nothing, guess, kafka_settings, treatment
from ottla.server.redaction import is_secret

#: Prefixes of environment variables: of the images of Apache Kafka and Confluent, and of Bitnami's.
PREFIXES = ("KAFKA_CFG_", "KAFKA_")
#: Variables with such a name that are no settings of a broker: those of start scripts and of Java.
OF_SCRIPTS = ("KAFKA_HEAP_OPTS", "KAFKA_OPTS", "KAFKA_HOME", "KAFKA_VERSION", "KAFKA_KRAFT_CLUSTER_ID", "KAFKA_PORT", "KAFKA_MODE")
OF_SCRIPTS_PREFIXES = (
    "KAFKA_JMX_", "KAFKA_JVM_", "KAFKA_LOG4J_", "KAFKA_GC_", "KAFKA_DEBUG", "KAFKA_ENABLE_", "KAFKA_CLIENT_", "KAFKA_CERTIFICATE_",
    "KAFKA_EXTRA_", "KAFKA_VOLUME_", "KAFKA_BASE_", "KAFKA_CONF_", "KAFKA_DAEMON_",
    "KAFKA_INTER_BROKER_USER", "KAFKA_INTER_BROKER_PASSWORD",
    "KAFKA_CONTROLLER_USER", "KAFKA_CONTROLLER_PASSWORD", "KAFKA_TLS_", "KAFKA_ZOOKEEPER_PROTOCOL", "KAFKA_ZOOKEEPER_USER",
    "KAFKA_ZOOKEEPER_PASSWORD", "KAFKA_ZOOKEEPER_TLS_",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AcceptedSettings:
    """What a start takes from the settings that it was given."""

    #: Settings that Ottla has, by Kafka's name.
    texts: dict[str, str] = field(default_factory=dict)
    #: Settings under names that neither Ottla nor Kafka has.
    plugins: dict[str, str] = field(default_factory=dict)
    #: A sentence about each setting that has no effect.
    warnings: list[str] = field(default_factory=list)


def parse_properties(text: str) -> dict[str, str]:
    """Names and values of a file in Java's properties format; the last of equal names wins. Raises: ConfigError."""
    import javaproperties

    try:
        return javaproperties.loads(text)
    except javaproperties.InvalidUEscapeError as error:
        raise ConfigError("the properties file", f"{error.escape} is no escape; write \\uXXXX with four digits") from None


def settings_of_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Settings in the variables of the usual container images: ``KAFKA_LOG_DIRS=/data`` is ``log.dirs=/data``.

    An underscore is a dot, two are a dash and three an underscore, as in the images of Apache Kafka and of Confluent; ``KAFKA_CFG_`` is
    Bitnami's prefix. Variables of start scripts and of Java are left out.
    """
    found: dict[str, str] = {}
    for variable, value in sorted(variables.items()):
        prefix = next((prefix for prefix in PREFIXES if variable.startswith(prefix)), None)
        if prefix is None or variable in OF_SCRIPTS or variable.startswith(OF_SCRIPTS_PREFIXES):
            continue
        name = variable[len(prefix) :].lower().replace("___", "\0").replace("__", "-").replace("_", ".").replace("\0", "_")
        if name:
            found[name] = value
    return found


def accepted_settings(texts: Mapping[str, str], *, typed: Collection[str] = ()) -> AcceptedSettings:
    """Sorts the settings that a start was given. Of those named in ``typed``, by hand, unknown ones are refused: they are typing errors.

    Raises: ConfigError for a setting that cannot be honoured.
    """
    accepted = AcceptedSettings()
    controller_names = {name.strip() for name in texts.get("controller.listener.names", "").split(",") if name.strip()}
    for written, value in texts.items():
        name = ALIASES.get(written, written)
        verdict, reason = treatment(name)
        if name == "broker.id" and value.strip() == "-1":
            accepted.warnings.append("ignoring broker.id=-1: ids are not generated; the broker has the default id, 1")
        elif verdict is Treatment.IN_FORCE and written in typed and is_secret(name):
            raise ConfigError(name, "a secret is not given in an argument, which others can see; set it in a file (--config) or with --env")
        elif verdict is Treatment.IN_FORCE:
            accepted.texts[name] = value
        elif name == "process.roles":
            _refuse_roles(value)
        elif verdict is Treatment.REFUSED:
            if not asks_for_nothing(name, value):
                raise ConfigError(name, reason)
        elif verdict is Treatment.MEANINGLESS:
            setting = kafka_settings("broker").get(name)
            if setting is None or not setting.is_default(value):
                accepted.warnings.append(f"ignoring {name}: {reason}")
        elif written in typed or name.startswith("ottla."):
            raise ConfigError(name, f"unknown setting{guess(name)}")
        else:
            accepted.plugins[name] = value
            accepted.warnings.append(f"{name} has no effect: it is no setting of a broker{guess(name)}")
    for name, separator in (("listeners", "://"), ("advertised.listeners", "://"), ("listener.security.protocol.map", ":")):
        if name in accepted.texts and controller_names:
            parts = [part.strip() for part in accepted.texts[name].split(",")]
            accepted.texts[name] = ",".join(part for part in parts if part.partition(separator)[0] not in controller_names)
    return accepted


def _refuse_roles(roles: str) -> None:
    found = [role.strip() for role in roles.split(",") if role.strip()]
    if found and "broker" not in found:
        raise ConfigError("process.roles", f"no process has the role {roles} alone: every broker can be the controller; start brokers only")
