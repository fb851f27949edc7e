"""The clients for asyncio: `Producer`, `Consumer`, `Admin`, `consume` for a loop over records, and `read_table` for an Arrow table."""

from ottla.client.admin import Admin
from ottla.client.batches import Delivery
from ottla.client.consume import Records, consume
from ottla.client.consumer import Consumer
from ottla.client.producer import Producer
from ottla.client.raw_fetch import RawFetch
from ottla.client.tables import read_table_beside as read_table

__all__ = ["Admin", "Consumer", "Delivery", "Producer", "RawFetch", "Records", "consume", "read_table"]
