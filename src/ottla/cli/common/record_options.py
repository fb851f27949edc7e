"""Options that `ottla produce` and `ottla consume` share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.base.options import suggestion
from ottla.cli.common.connection import combined, profile_settings
from ottla.cli.common.errors import assignments
from ottla.client.options import ClientOptions

if TYPE_CHECKING:
    from ottla.cli.common.value_formats import ValueFormat

_FORMATS_HELP = (
    "Format of keys: text, json, pretty, hex, base64, int, float, uuid, avro[:FILE], protobuf:FILE:MESSAGE or pack:FORMAT."
    " Sizes: int8 to int64, float32, float64."
)


#: `--registry` of avro.
registry_option = click.option("--registry", metavar="URL", envvar="OTTLA_REGISTRY", help="Schema registry for avro; also OTTLA_REGISTRY.")
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


def parse_value_format(text: str, option: str, *, registry: str | None = None, subject: str = "") -> ValueFormat:
    """The format with that name. `subject`: writes with its newest schema. Raises: ValueError, OSError, ImportError."""
    from ottla.cli.common.value_formats import NAMES, VALUE_FORMATS, packed

    name, _, argument = text.partition(":")
    if name in ("avro", "protobuf"):
        from ottla.cli.common import schemas

        if name == "avro":
            return schemas.avro(argument, registry, subject)
        file, _, message = argument.rpartition(":")
        if not file or not message:
            raise ValueError(f"{option} expects protobuf:FILE:NAME, not {text!r}")
        return schemas.protobuf(Path(file), message, framed=registry is not None)
    if name == "pack" and argument:
        return packed(argument, option)
    if not argument and text in VALUE_FORMATS:
        return VALUE_FORMATS[text]
    raise ValueError(f"{option}: unknown format {text!r}{suggestion(text, NAMES)}; formats are {', '.join(NAMES)}")


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
