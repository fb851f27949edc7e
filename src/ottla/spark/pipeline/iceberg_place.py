"""Where the Iceberg table of a sink is."""

from ottla.lake.table.iceberg_catalog import IcebergPlace, embedded, in_catalog
from ottla.spark.pipeline.config.model import Sink


def iceberg_place(sink: Sink) -> IcebergPlace:
    """Raises: CatalogOptionError, a ValueError."""
    if sink.catalog is not None:
        return in_catalog(sink.catalog, sink.table or "", sink.options)
    return embedded(sink.place)
