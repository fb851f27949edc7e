"""The admin client for asyncio, its requests and result types."""
