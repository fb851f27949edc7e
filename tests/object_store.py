"""An object store of its own (moto or another of `store_servers`, a child process), and a proxy before it that injects faults.

with ObjectStore() as store:
    store.proxy.faults.append(Fault(is_commit, "lose answer"))
    location(store.url("t"), store.options)
"""

import http.client
import json
import re
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote

from store_servers import BUCKET, KEY, KINDS, SECRET, Request, StoreKind, send_to

__all__ = ["BUCKET", "KEY", "SECRET", "Fault", "FaultProxy", "ObjectStore"]

ERRORS = {
    "slow down": (503, "SlowDown"),
    "internal error": (500, "InternalError"),
    "deny": (403, "AccessDenied"),
    "conflict": (400, "ConcurrentModificationException"),
}


@dataclass
class Fault:
    """What happens to the next `times` requests whose `METHOD path?query` the expression matches.

    A request of a JSON service, such as AWS Glue, is `POST / SERVICE.OPERATION`.
    """

    pattern: str
    #: slow down, internal error, deny, conflict: an answer. stall, hold: none. tear: the connection ends in the body. lose answer: it
    #: ends after the request was carried out. unconditional: the conditions of the request are removed. pass: nothing.
    kind: str
    times: int = 1
    #: In the proxy.
    happened: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)


def _error(kind: str, *, is_json: bool) -> tuple[int, list[tuple[str, str]], bytes]:
    status, code = ERRORS[kind]
    if is_json:
        return status, [("Content-Type", "application/x-amz-json-1.1")], json.dumps({"__type": code, "Message": "by the test"}).encode()
    return status, [], f"<Error><Code>{code}</Code><Message>by the test</Message></Error>".encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "FaultProxy"

    def _handle(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if self.path.startswith("/-/"):
            return self._answer(200, [], self.server.control(self.path, self.rfile.read(length)))
        fault = self.server.take(f"{self.command} {unquote(self.path)}{self._operation}")
        if fault is not None and fault.kind == "tear":
            self.rfile.read(length // 2)
            return self._end(fault)
        body = self._chunks() if self.headers.get("Transfer-Encoding") == "chunked" else self.rfile.read(length)
        if fault is not None and fault.kind in ("stall", "hold"):
            fault.happened.set()
            fault.released.wait(30)
            return self._end(fault)
        if fault is not None and fault.kind in ERRORS:
            fault.happened.set()
            return self._answer(*_error(fault.kind, is_json=self._operation != ""))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("connection", "transfer-encoding", "expect")}
        if fault is not None and fault.kind == "unconditional":
            headers = {name: value for name, value in headers.items() if name.lower() not in self.server.kind.conditions}
        status, answered, data = self.server.send(Request(self.command, self.path, headers, body))
        if fault is not None:
            fault.happened.set()
        if fault is not None and fault.kind == "lose answer":
            return self._end(fault)
        self._answer(status, answered, data)

    @property
    def _operation(self) -> str:
        """Of AWS's services whose requests are JSON, such as Glue."""
        return f" {name}" if (name := self.headers.get("X-Amz-Target")) else ""

    def _chunks(self) -> bytes:
        """A body in chunks, as pyarrow sends it."""
        parts = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _end(self, fault: Fault) -> None:
        self.close_connection = True
        fault.happened.set()

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                self.send_header(name, value)
        described = {name.lower(): value for name, value in headers}.get("content-length", "0")
        length = described if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle

    def log_message(self, format: str, *args: Any) -> None: ...


class FaultProxy(ThreadingHTTPServer):
    """Passes requests on, and injects faults."""

    daemon_threads = True

    def __init__(self, behind: str, kind: StoreKind = KINDS["s3"]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.kind = kind
        self.send = kind.translated(send_to(behind))
        self.faults: list[Fault] = []
        self._lock = threading.Lock()

    def take(self, request: str) -> Fault | None:
        with self._lock:
            for fault in self.faults:
                if fault.times and re.search(fault.pattern, request):
                    fault.times -= 1
                    return fault
        return None

    def control(self, path: str, body: bytes) -> bytes:
        """A request of a test."""
        if path == "/-/add":
            with self._lock:
                self.faults.append(Fault(*json.loads(body)))
        elif path == "/-/clear":
            with self._lock:
                for fault in self.faults:
                    fault.released.set()
                self.faults = []
        else:
            return json.dumps(all(fault.happened.wait(60) for fault in self.faults)).encode()
        return b"{}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A killed client is part of the tests."""


class ObjectStore:
    """A server behind the proxy, with one bucket. Both are processes of their own: deltalake stops all threads during some requests."""

    def __init__(self, kind: str = "s3") -> None:
        self.kind = KINDS[kind]

    def __enter__(self) -> Self:
        # Not above: this file is also the proxy's program, which does not find it.
        from chaos.object_store import started

        server, behind = self.kind.start()
        self._processes = [server]
        proxy, self._address = started(__file__, behind, self.kind.scheme)
        self._processes.append(proxy)
        self.endpoint = f"http://{self._address}"
        self.kind.make_bucket(behind)
        self.options = {**self.kind.options(self._address), "allow_http": "true", "timeout": "3s"}
        return self

    def iceberg(self, key: str) -> dict[str, str]:
        """Properties of an Iceberg catalog whose tables lie below a key. They need the variable STORE_SECRET."""
        return self.kind.iceberg(self._address, key)

    def url(self, key: str) -> str:
        """The address of an object or a prefix."""
        return f"{self.kind.scheme}://{BUCKET}/{key}"

    def _request(self, method: str, path: str, body: bytes = b"") -> bytes:
        connection = http.client.HTTPConnection(self._address, timeout=90)
        connection.request(method, path, body)
        response = connection.getresponse()
        data = response.read()
        connection.close()
        assert response.status == 200, data
        return data

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def inject(self, pattern: str, kind: str, times: int = 1) -> None:
        """Adds a fault."""
        self._request("POST", "/-/add", json.dumps([pattern, kind, times]).encode())

    def happened(self) -> bool:
        """Waits until each fault has happened at least once; False after a while."""
        return bool(json.loads(self._request("GET", "/-/happened")))

    def clear(self) -> None:
        """Ends all faults; requests that wait get no answer."""
        self._request("POST", "/-/clear")

    @property
    def words(self) -> list[str]:
        """The options for a command."""
        return [word for name, value in self.options.items() for word in ("--storage-option", f"{name}={value}")]


if __name__ == "__main__":
    proxy = FaultProxy(sys.argv[1], KINDS[sys.argv[2]])
    print(f"Running on http://127.0.0.1:{proxy.server_address[1]}", file=sys.stderr, flush=True)
    proxy.serve_forever()
