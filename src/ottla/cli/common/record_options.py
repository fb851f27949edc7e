"""Options that `ottla produce` and `ottla consume` share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.common.connection import combined, profile_settings
from ottla.cli.common.errors import assignments
from ottla.client.options import ClientOptions
from ottla.client.values.parse import parse_value_format as parse_value_format

if TYPE_CHECKING:
    from ottla.client.values.value_formats import ValueFormat

_FORMATS_HELP = (
    "Format of keys: text, json, pretty, hex, base64, int, float, uuid, avro[:FILE],"
    " protobuf[:[FILE:]MESSAGE], json-schema[:FILE] or pack:FORMAT."
    " Sizes: int8 to int64, float32, float64."
)


#: `--registry` of avro, protobuf and json-schema.
registry_option = click.option(
    "--registry", metavar="URL", envvar="OTTLA_REGISTRY", help="Schema registry for avro, protobuf and json-schema; also OTTLA_REGISTRY."
)
#: `--key-format`, `--value-format`, `--registry`.
format_options = combined(
    registry_option,
    click.option("--value-format", default="text", metavar="FORMAT", help="Format of values, as for keys."),
    click.option("--key-format", default="text", metavar="FORMAT", help=_FORMATS_HELP),
)
#: `-X`, client settings.
setting_option = click.option(
    "-X", "--setting", "settings", multiple=True, metavar="NAME=VALUE", help="Client setting, such as client.rack=a; repeatable."
)


def client_settings(table: type[ClientOptions], pairs: Iterable[str]) -> dict[str, Any]:
    """A client's settings: those of the profile in use, overridden by `-X`. Raises: UsageError."""
    return profile_settings(table) | {name.replace(".", "_"): value for name, value in assignments(pairs, "-X").items()}


def parse_formats(asked: Mapping[str, Any], topic: str = "") -> tuple[ValueFormat, ValueFormat]:
    """The formats of keys and values from the command's options. Raises: UsageError, ClickException."""
    try:
        key, value = (
            parse_value_format(asked[f"{field}_format"], f"--{field}-format", registry=asked["registry"], subject=f"{topic}-{field}")
            for field in ("key", "value")
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except (ImportError, OSError) as error:
        raise click.ClickException(str(error)) from None
    return key, value
