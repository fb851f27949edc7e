"""Joins the small files of a table of any kind that has transactions, and removes old ones."""

from typing import TYPE_CHECKING

from ottla.lake.storage import Location
from ottla.lake.table.delta import Compacted, compact, opened, vacuum
from ottla.lake.table.target import FORM, MARKS, TableConflict

if TYPE_CHECKING:
    from ottla.lake.table.iceberg_catalog import IcebergPlace


def compacted(where: "Location | IcebergPlace", vacuum_hours: int | None) -> tuple[Compacted, int | None]:
    """The numbers of files that were joined, and that were removed; None if `vacuum_hours` is None. Raises: TableConflict."""
    if isinstance(where, Location) and not (where.is_local and where.holds(MARKS["iceberg"][0])):
        if opened(where) is None:
            raise TableConflict(f"{where} is not a Delta table or an Iceberg table")
        return compact(where), None if vacuum_hours is None else len(vacuum(where, retention_hours=vacuum_hours))
    from ottla.lake.table.iceberg_batches import IcebergBatches
    from ottla.lake.table.iceberg_catalog import embedded, opened_table
    from ottla.lake.table.iceberg_target import IcebergTarget

    place = embedded(where) if isinstance(where, Location) else where
    with opened_table(place) as table:
        is_of_topic = FORM in table.properties
    target = IcebergTarget(place) if is_of_topic else IcebergBatches(place)
    try:
        return target.compact(), None if vacuum_hours is None else target.vacuum(vacuum_hours)
    finally:
        target.close()
