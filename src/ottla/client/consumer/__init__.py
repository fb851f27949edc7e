"""The consumer for asyncio: assignment, positions, rebalances, delivery of records."""
