"""The clients for asyncio: `Producer`, `Consumer`, `Admin`."""

from ottla.client.admin import Admin
from ottla.client.batches import Delivery
from ottla.client.consumer import Consumer, RawFetch
from ottla.client.producer import Producer

__all__ = ["Admin", "Consumer", "Delivery", "Producer", "RawFetch"]
