"""Options of object stores: names, and which are secrets. Pure: `ottla.lake.storage` opens stores with them, profiles keep them.

A secret option is a reference (`env:VARIABLE`, `file:FILE`), so options can be printed, stored and sent to other processes.
"""

from collections.abc import Mapping

from ottla.base.options import suggestion

#: Where a secret is.
FILE, VARIABLE = "file:", "env:"
#: Options by kind of store, with the names that obstore and deltalake share. Other tools use the latter as variables, in capitals.
OPTIONS: dict[str, dict[str, str]] = {
    "s3": {
        name: f"aws_{name}"
        for name in (
            "access_key_id", "secret_access_key", "session_token", "region", "endpoint", "virtual_hosted_style_request", "skip_signature",
            "server_side_encryption", "sse_kms_key_id",
        )
    },
    "gs": {
        **{name: f"google_{name}" for name in ("service_account", "service_account_key", "application_credentials", "skip_signature")},
        "endpoint": "google_base_url",
    },
    "az": {
        **{
            name: f"azure_storage_{name}"
            for name in ("account_name", "account_key", "client_id", "client_secret", "tenant_id", "sas_token", "use_emulator")
        },
        "sas_token": "azure_storage_sas_key", "endpoint": "azure_endpoint", "skip_signature": "azure_skip_signature",
    },
}  # fmt: skip
SECRETS = ("secret_access_key", "session_token", "service_account_key", "account_key", "client_secret", "sas_token")
#: Options of the connection, the same for all stores.
CONNECTION = ("allow_http", "timeout", "connect_timeout")


class StorageOptionError(ValueError):
    """An option that cannot be used; the message says what to do and shows no value."""


def kind_of(scheme: str) -> str:
    """The kind of store: s3, gs or az."""
    return "az" if scheme.startswith("abfs") else scheme


def checked_options(scheme: str, options: Mapping[str, str]) -> dict[str, str]:
    """The options by their short names. Raises: StorageOptionError for an unknown name, and for a secret that is not a reference."""
    found = {}
    for given, value in options.items():
        name = short_name(scheme, given)
        if name in SECRETS and not value.startswith((FILE, VARIABLE)):
            raise StorageOptionError(
                f"storage option {given} is a secret, which others could read: write {given}=env:VARIABLE or {given}=file:FILE"
            )
        found[name] = value
    return found


def short_name(scheme: str, given: str) -> str:
    """The short name of an option. Raises: StorageOptionError."""
    known = OPTIONS[kind_of(scheme)]
    short = {full: name for name, full in known.items()} | {name: name for name in (*known, *CONNECTION)}
    short |= {f"aws_{name}": name for name in CONNECTION} | {"aws_endpoint_url": "endpoint", "endpoint_url": "endpoint"}
    if (name := short.get(given.lower())) is None:
        raise StorageOptionError(f"storage option {given} is not known for {scheme}://{suggestion(given, [*known, *CONNECTION])}")
    return name
