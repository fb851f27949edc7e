"""Options and arguments that take a local path: `click.Path` and `click.File` that refuse URLs such as ``s3://bucket/x``."""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from ottla.base.paths import NotLocal, is_object_url, local_path

if TYPE_CHECKING:
    from ottla.lake.storage import Location


class LocalPath(click.Path):
    """A path on this machine."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(_local(self, value, param, ctx), param, ctx)


class LocalFile(click.File):
    """An open file on this machine."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> IO[Any]:
        opened: IO[Any] = super().convert(_local(self, value, param, ctx), param, ctx)
        return opened


class LocationPath(click.ParamType[Path | str]):
    """A directory of this machine as `Path`, or the address of an object store as text; `location_of` joins it with the options."""

    name = "location"

    def __init__(self, *, exists: bool = False) -> None:
        self._local = LocalPath(exists=exists, file_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and is_object_url(value):
            return value
        return self._local.convert(value, param, ctx)


#: `--storage-option`, for addresses of object stores.
storage_option = click.option(
    "--storage-option",
    "storage",
    multiple=True,
    metavar="NAME=VALUE",
    help="Option of an object store, such as endpoint=URL or secret_access_key=env:VARIABLE; repeatable.",
)


def storage_options(pairs: tuple[str, ...]) -> dict[str, str]:
    """The options by name. Raises: UsageError."""
    return named_values("--storage-option", pairs)


def named_values(option: str, pairs: tuple[str, ...]) -> dict[str, str]:
    """The values of a repeated option NAME=VALUE. Raises: UsageError."""
    split = [pair.partition("=") for pair in pairs]
    for name, equals, _ in split:
        if not equals or not name:
            raise click.UsageError(f"{option} expects NAME=VALUE, not {name!r}")
    return {name: value for name, _, value in split}


def location_of(where: Path | str, pairs: tuple[str, ...]) -> Location:
    """The location of an argument, with the options of the profile and of `--storage-option`. Raises: UsageError."""
    from ottla.cli.common.connection import profile_storage
    from ottla.lake.storage import StorageError, location

    options = storage_options(pairs)
    if options and isinstance(where, Path):
        raise click.UsageError(f"--storage-option is for addresses of object stores, and {where} is a local directory")
    try:
        return location(where, options if isinstance(where, Path) else {**profile_storage(where), **options})
    except StorageError as error:
        raise click.UsageError(str(error)) from None


def _local(kind: click.Path | click.File, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return local_path(value)
    except NotLocal as error:
        kind.fail(str(error), param, ctx)
