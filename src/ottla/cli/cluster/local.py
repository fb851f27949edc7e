"""What the commands for a cluster on this machine share: where it is, how it is found, and how they fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from ottla.cli.common.errors import told
from ottla.cli.common.paths import LocalPath
from ottla.server.data_directory import CannotStart, LockedDirectory, default_data_directory
from ottla.server.local_cluster import LocalCluster

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT = default_data_directory() / "cluster"


def data_dir_option(function: F) -> F:
    """`--data-dir`, where everything of a cluster is."""
    return click.option(
        "--data-dir",
        metavar="DIR",
        envvar="OTTLA_CLUSTER",
        type=LocalPath(path_type=Path),
        default=DEFAULT,
        show_default=True,
        help="Where everything of the cluster is kept; the environment variable OTTLA_CLUSTER sets it too.",
    )(function)


@contextmanager
def failing() -> Iterator[None]:
    """Turn what keeps processes from starting into one line and an exit code, as `told` does for the rest."""
    with told():
        try:
            yield
        except CannotStart as error:
            raise click.ClickException(str(error)) from None


@contextmanager
def held_cluster(directory: Path) -> Iterator[LocalCluster]:
    """The cluster of a directory, with which no other command does anything meanwhile. Raises: CannotStart."""
    LocalCluster.load(directory)
    holds = LockedDirectory(directory)
    try:
        yield LocalCluster.load(directory)
    finally:
        holds.release()
