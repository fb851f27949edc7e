"""The cluster of a source, a sink or a pipeline that names no brokers: that of the environment or of a profile, as in clients.

Profiles are read on the driver. Tasks get the address and the settings with the other options, so executors need no file.
"""

from collections.abc import Mapping
from typing import NamedTuple

from ottla.client.options import AdminOptions, ConsumerOptions, ProducerOptions
from ottla.client.profiles import cluster_address, settings_in

TABLES = (ConsumerOptions, ProducerOptions, AdminOptions)
#: Settings of a profile that Spark decides itself.
SPARKS_OWN = frozenset(
    {"group.id", "group.instance.id", "auto.offset.reset", "enable.auto.commit", "interceptor.classes", "transactional.id"}
    | {f"{field}.{kind}" for field in ("key", "value") for kind in ("serializer", "deserializer")}
)


class ProfileCluster(NamedTuple):
    """Bootstrap servers, client settings by Kafka's names, and options of object stores by kind. The settings may hold secrets."""

    bootstrap: str
    settings: Mapping[str, str]
    storage: Mapping[str, Mapping[str, str]] = {}


def profile_cluster(profile: str | None) -> ProfileCluster | None:
    """The cluster of a named profile, else of the environment or of the profile in use; None without any. Raises: ProfileError."""
    address = cluster_address(None, profile)
    if address.source == "default":
        return None
    settings: dict[str, str] = {}
    for table in TABLES:
        names = {spec.attribute: spec.name for spec in table.SPECS.values()}
        settings |= {names[attribute]: str(value) for attribute, value in settings_in(table, address.settings).items()}
    return ProfileCluster(address.bootstrap, {name: value for name, value in settings.items() if name not in SPARKS_OWN}, address.storage)
