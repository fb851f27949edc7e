"""Options and arguments that take a local path: `click.Path` and `click.File` that refuse URLs such as ``s3://bucket/x``."""

from __future__ import annotations

from typing import IO, Any

import click

from ottla.base.paths import NotLocal, local_path


class LocalPath(click.Path):
    """A path on this machine."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(_local(self, value, param, ctx), param, ctx)


class LocalFile(click.File):
    """An open file on this machine."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> IO[Any]:
        opened: IO[Any] = super().convert(_local(self, value, param, ctx), param, ctx)
        return opened


def _local(kind: click.Path | click.File, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return local_path(value)
    except NotLocal as error:
        kind.fail(str(error), param, ctx)
