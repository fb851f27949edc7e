"""Settings of the schema registry that a broker asks about the schemas of records (``ottla.value.schema.validation`` of a topic)."""

from typing import Any
from urllib.parse import urlsplit

from ottla.base.options import Options, Secret, option
from ottla.base.units import MINUTE_MS, SECOND_MS


def _check_urls(urls: Any) -> None:
    """For the parsed list. Raises: ValueError, without the URL: it may have a password."""
    for number, url in enumerate(urls, 1):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"URL {number} must begin with http:// or https:// and a host")
        if "@" in parts.netloc:
            raise ValueError(f"URL {number} has a login; set ottla.schema.registry.user and ottla.schema.registry.password instead")


class SchemaRegistryOptions(Options):
    """How a broker reaches the schema registry, and how long it relies on an answer."""

    schema_registry_url: tuple[str, ...] = option(
        (),
        name="ottla.schema.registry.url",
        check=_check_urls,
        doc="URLs of the schema registry that topics with validation need; the next is asked if one does not answer. Empty: none.",
    )
    schema_registry_user: str = option("", name="ottla.schema.registry.user", doc="User name of brokers at the schema registry.")
    schema_registry_password: Secret = option("", name="ottla.schema.registry.password", doc="Password of that user.")
    schema_registry_token: Secret = option(
        "", name="ottla.schema.registry.token", doc="Bearer token of brokers at the schema registry, instead of a user."
    )
    schema_registry_ca: str = option(
        "",
        name="ottla.schema.registry.ssl.ca.location",
        doc="PEM file with the authorities of the registry's certificate. Empty: the system's.",
    )
    schema_registry_certificate: str = option(
        "",
        name="ottla.schema.registry.ssl.certificate.location",
        doc="PEM file with the certificate that the registry asks for, if it does.",
    )
    schema_registry_key: str = option(
        "", name="ottla.schema.registry.ssl.key.location", doc="PEM file with the key of that certificate. Empty: in the same file."
    )
    schema_registry_timeout_ms: int = option(
        5 * SECOND_MS,
        name="ottla.schema.registry.timeout.ms",
        at_least=1,
        doc="Maximum wait of a Produce for the schema registry. After it the producer gets NOT_ENOUGH_REPLICAS and tries again.",
    )
    schema_registry_cache_ms: int = option(
        5 * MINUTE_MS,
        name="ottla.schema.registry.cache.ms",
        at_least=SECOND_MS,
        doc="How long a broker relies on the registry's answer that a schema is registered. That one is not is remembered for 1 s.",
    )
    schema_registry_cache_size: int = option(
        10_000,
        name="ottla.schema.registry.cache.size",
        at_least=1_000,
        doc="Answers of the registry that a broker remembers, of each kind; the oldest are forgotten first.",
    )
