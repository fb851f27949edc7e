"""The clients for asyncio: `Producer`, `Consumer`, `Admin`, `consume` for a loop over records, `process` for exactly-once processing, and
`read_table` for an Arrow table."""

from ottla.client.admin.admin import Admin
from ottla.client.arrow.tables import read_table_beside as read_table
from ottla.client.consumer.consume import Records, consume
from ottla.client.consumer.consumer import Consumer
from ottla.client.fetch.raw_fetch import RawFetch
from ottla.client.process.process import Processor, process
from ottla.client.producer.batches import Delivery
from ottla.client.producer.producer import Producer

__all__ = ["Admin", "Consumer", "Delivery", "Processor", "Producer", "RawFetch", "Records", "consume", "process", "read_table"]
