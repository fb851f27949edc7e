"""Where a table is: a directory, a prefix of an object store, or a name in an Iceberg catalog; and the options that say so."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.common.connection import Decorator, combined
from ottla.cli.common.paths import location_of, named_values, storage_option

if TYPE_CHECKING:
    from ottla.lake.storage import Location
    from ottla.lake.table.iceberg_catalog import IcebergPlace
    from ottla.lake.table.target import Target

ICEBERG = "iceberg"

#: `--storage-option`, `--catalog` and `--catalog-option`.
place_options = combined(
    click.option(
        "--catalog-option", "catalog_options", multiple=True, metavar="NAME=VALUE",
        help="Property of the catalog, such as uri=URL or token=env:VARIABLE; repeatable.",
    ),
    click.option(
        "--catalog", metavar="NAME",
        help="Iceberg catalog of .pyiceberg.yaml; the table is then named NAMESPACE.TABLE. [default: a catalog in DIR]",
    ),
    storage_option,
)  # fmt: skip


def format_option(*formats: str) -> Decorator:
    """`--format`; the first one is the default."""
    return click.option(
        "--format", "form", type=click.Choice(formats), default=formats[0], help=f"Format of the table. [default: {formats[0]}]"
    )


def target_of(options: Mapping[str, Any]) -> Target:
    """The table of `--to`. Raises: UsageError."""
    form, where = options["form"], options["directory"]
    if form == ICEBERG:
        # First, since it reports a missing pyiceberg.
        place = _iceberg_place(where, options)
        from ottla.lake.table.iceberg_target import IcebergTarget

        return IcebergTarget(place)
    if options["catalog"] is not None or options["catalog_options"]:
        raise click.UsageError(f"--catalog and --catalog-option are for --format {ICEBERG}; a {form} table has no catalog")
    from ottla.lake.table.parquet_target import ParquetTarget
    from ottla.lake.table.target import DeltaTarget

    directory = location_of(where, options["storage"])
    return DeltaTarget(directory) if form == "delta" else ParquetTarget(directory)


def existing_place(where: Path | str, options: Mapping[str, Any]) -> Location | IcebergPlace:
    """The place of a table that exists. Raises: UsageError."""
    if options["catalog"] is not None or options["catalog_options"]:
        return _iceberg_place(where, options)
    if isinstance(where, Path) and not where.is_dir():
        raise click.UsageError(f"Directory '{where}' does not exist; a table of a catalog needs --catalog NAME")
    return location_of(where, options["storage"])


def _iceberg_place(where: Path | str, options: Mapping[str, Any]) -> IcebergPlace:
    from ottla.lake.table.iceberg_catalog import CatalogOptionError, embedded, in_catalog

    catalog, properties = options["catalog"], named_values("--catalog-option", options["catalog_options"])
    if options["storage"]:
        raise click.UsageError(
            "--storage-option is not for Iceberg: its catalog opens the store; write --catalog-option s3.endpoint=URL say"
        )
    if properties and catalog is None:
        raise click.UsageError("--catalog-option needs --catalog NAME")
    try:
        return embedded(location_of(where, ())) if catalog is None else in_catalog(catalog, str(where), properties)
    except CatalogOptionError as error:
        raise click.UsageError(str(error)) from None
