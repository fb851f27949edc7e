"""A minimal client: ApiVersions and Metadata on a blocking socket, to check whether a server responds.

The requests are the oldest non-flexible versions that both servers support, built by hand, so nothing is imported
during the measurement of a start.
"""

from __future__ import annotations

import socket
import struct

API_VERSIONS, METADATA = 18, 3


def request(key: int, version: int, correlation_id: int, body: bytes = b"") -> bytes:
    """A frame with header version 1 (key, version, correlation id, client id)."""
    payload = struct.pack(">hhih5s", key, version, correlation_id, 5, b"bench") + body
    return struct.pack(">i", len(payload)) + payload


#: ApiVersions v0 has an empty body.
API_VERSIONS_REQUEST = request(API_VERSIONS, 0, 1)
#: Metadata v1 with an empty (not null) array of topics: the brokers alone.
METADATA_REQUEST = request(METADATA, 1, 2, struct.pack(">i", 0))


def receive(sock: socket.socket) -> bytes:
    """One whole response frame, without its size. Raises ConnectionError when the peer closes."""
    (size,) = struct.unpack(">i", _exactly(sock, 4))
    return _exactly(sock, size)


def answers(sock: socket.socket) -> bool:
    """Whether ApiVersions succeeds and Metadata names at least one broker."""
    sock.sendall(API_VERSIONS_REQUEST)
    reply = receive(sock)
    if struct.unpack_from(">ih", reply) != (1, 0):
        return False
    sock.sendall(METADATA_REQUEST)
    correlation_id, brokers = struct.unpack_from(">ii", receive(sock))
    return bool(correlation_id == 2 and brokers > 0)


def _exactly(sock: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = sock.recv(size - len(parts))
        if not part:
            raise ConnectionError("the server closed the connection")
        parts += part
    return bytes(parts)
