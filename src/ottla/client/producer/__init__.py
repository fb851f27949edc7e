"""The producer for asyncio: accumulator, batches, partitioner, sender."""
