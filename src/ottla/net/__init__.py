"""Sockets on asyncio: `server` listens, `link` connects."""
