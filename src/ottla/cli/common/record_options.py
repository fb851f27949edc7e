"""Options that `ottla produce` and `ottla consume` share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ottla.cli.common.connection import profile_settings
from ottla.cli.common.errors import assignments

if TYPE_CHECKING:
    from ottla.cli.common.value_formats import Form
    from ottla.client.options import ClientOptions

F = TypeVar("F", bound=Callable[..., Any])
_FORMS = (
    "{} are: text, json, pretty, hex, base64, int, float, uuid, avro[:FILE], protobuf:FILE:MESSAGE, pack:FORMAT."
    " int8 to int64, float32 and float64 say the size."
)


def form_options(function: F) -> F:
    """`--key-format`, `--value-format`, `--registry`."""
    for option in (
        click.option("--registry", metavar="URL", envvar="OTTLA_REGISTRY", help="Schema registry, for avro; OTTLA_REGISTRY sets it too."),
        click.option("--value-format", default="text", metavar="FORM", help="What values are, the same way."),
        click.option("--key-format", default="text", metavar="FORM", help=_FORMS.format("What keys")),
    ):
        function = option(function)
    return function


def setting_option(function: F) -> F:
    """`-X`, settings of the client."""
    return click.option(
        "-X", "--setting", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of the client, such as client.rack=a."
    )(function)


def client_settings(table: type[ClientOptions], pairs: Iterable[str]) -> dict[str, Any]:
    """Settings of a client with this table: what the profile in use says that it knows, and over it what `-X` says. Raises: UsageError."""
    given = {name.replace(".", "_"): value for name, value in assignments(pairs, "-X").items()}
    return {**profile_settings(table), **given}


def forms(asked: Mapping[str, Any], topic: str = "") -> tuple[Form, Form]:
    """The formats of keys and values. Raises: UsageError, ClickException."""
    from ottla.cli.common.value_formats import form

    try:
        key, value = (
            form(asked[f"{field}_format"], f"--{field}-format", registry=asked["registry"], subject=f"{topic}-{field}")
            for field in ("key", "value")
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except (ImportError, OSError) as error:
        raise click.ClickException(str(error)) from None
    return key, value
