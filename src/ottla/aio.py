"""The clients for asyncio: `Producer`, `Consumer`, `Admin`, and `consume` for a loop over records."""

from ottla.client.admin import Admin
from ottla.client.batches import Delivery
from ottla.client.consume import Records, consume
from ottla.client.consumer import Consumer
from ottla.client.producer import Producer
from ottla.client.raw_fetch import RawFetch

__all__ = ["Admin", "Consumer", "Delivery", "Producer", "RawFetch", "Records", "consume"]
