"""The servers of object stores that tests run on loopback: one of S3, one of Google Cloud Storage, one of Azure Blob Storage.

    s3    moto, from PyPI
    gs    fake-gcs-server, from Go's module proxy
    az    Azurite, from npm

What the two emulators lack, and clients need, is between them and the proxy. Which of two writers has the condition is decided by the
server.

    fake-gcs-server takes uploads of Google's JSON API only, and obstore and deltalake upload by the XML API: `_GoogleUploads` translates
    both ignore where a listing starts: `_listing`
"""

import http.client
import json
import re
import shutil
import socket
import subprocess
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest

from cached_builds import built, built_by

BUCKET = "lake"
FAKE_GCS, AZURITE = "v1.56.1", "3.35.0"
#: The account of Azurite, and its key, which is public.
ACCOUNT, ACCOUNT_KEY = "devstoreaccount1", "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
#: A service account that asks for no token.
NO_ACCOUNT = json.dumps({"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""})
STORE_SECRET = "STORE_SECRET"
KEY, SECRET = "a-key-id", "a-very-secret-key"


class Request(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Answer(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes


Send = Callable[[Request], Answer]


def send_to(address: str) -> Send:
    """Requests to a server."""

    def send(request: Request) -> Answer:
        connection = http.client.HTTPConnection(address, timeout=30)
        connection.request(request.method, request.path, request.body or None, dict(request.headers))
        response = connection.getresponse()
        answer = Answer(response.status, response.getheaders(), response.read())
        connection.close()
        return answer

    return send


# -- kinds of stores


@dataclass(frozen=True)
class StoreKind:
    """A store as clients see it, and how its server is started."""

    scheme: str
    #: Starts the server; returns it and its HOST:PORT.
    start: Callable[[], tuple["subprocess.Popen[str]", str]]
    #: Makes the bucket, by the server's HOST:PORT.
    make_bucket: Callable[[str], None]
    #: Options of a client, whose requests go to this HOST:PORT.
    options: Callable[[str], dict[str, str]]
    #: Properties of an Iceberg catalog whose tables lie below a key of the bucket, by HOST:PORT and key. The secret is a reference.
    iceberg: Callable[[str, str], dict[str, str]]
    #: Variables with the credentials.
    variables: Mapping[str, str]
    #: Options with the credentials, by a reference to the secret.
    credentials: Callable[[str], dict[str, str]]
    secret: str
    #: The second part of an upload in parts.
    second_part: str
    #: What is between a proxy and the server.
    translated: Callable[[Send], Send] = lambda send: send
    #: Headers that make a request conditional.
    conditions: tuple[str, ...] = ("if-match", "if-none-match")


def _printed(command: list[str], pattern: str) -> tuple["subprocess.Popen[str]", str]:
    """A server that names its address in its output."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None, "it is a pipe"
    lines = []
    for line in process.stdout:
        lines.append(line)
        if found := re.search(pattern, line):
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return process, found[1]
    raise AssertionError(f"{command[0]} did not start: {''.join(lines)[-2000:]}")


def _start_moto() -> tuple["subprocess.Popen[str]", str]:
    # Not above: the proxy is a program of its own, which does not find it.
    from chaos.object_store import moto

    return moto()


def _make_bucket_of_s3(address: str) -> None:
    assert send_to(address)(Request("PUT", f"/{BUCKET}", {}, b"")).status == 200


def _start_azurite() -> tuple["subprocess.Popen[str]", str]:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Azure's emulator Azurite needs Node.js with npm, which is not installed")

    def build(place: Path) -> None:
        (place / "package.json").write_text('{"private": true}')
        step = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", f"azurite@{AZURITE}"]
        built_by(place, step, missing="Azure's emulator Azurite cannot be had here")

    program = built("azurite", AZURITE, None, build) / "node_modules/azurite/dist/src/blob/main.js"
    options = ["--blobHost", "127.0.0.1", "--blobPort", "0", "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
    return _printed(["node", str(program), *options, "--silent"], r"listens on http://(127\.0\.0\.1:\d+)")


def _make_container(address: str) -> None:
    from pyarrow.fs import AzureFileSystem

    at = {"blob_storage_authority": address, "dfs_storage_authority": address}
    http = {"blob_storage_scheme": "http", "dfs_storage_scheme": "http"}
    AzureFileSystem(ACCOUNT, account_key=ACCOUNT_KEY, **at, **http).create_dir(BUCKET)


def _start_fake_gcs() -> tuple["subprocess.Popen[str]", str]:
    if shutil.which("go") is None:
        pytest.skip("the emulator fake-gcs-server needs Go, which is not installed")

    def build(place: Path) -> None:
        # A compiler that does not optimise takes less time.
        step = ["env", f"GOBIN={place}", "CGO_ENABLED=0", "go", "install", "-gcflags=all=-N -l", "-ldflags=-s -w"]
        built_by(place, [*step, f"github.com/fsouza/fake-gcs-server@{FAKE_GCS}"], missing="fake-gcs-server cannot be had here")

    program = built("fake-gcs-server", FAKE_GCS, None, build) / "fake-gcs-server"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-public-host", "127.0.0.1"]
    return _printed([str(program), *options], r"server started at http://(127\.0\.0\.1:\d+)")


def _make_bucket_of_google(address: str) -> None:
    made = send_to(address)(Request("POST", "/storage/v1/b", {"Content-Type": "application/json"}, json.dumps({"name": BUCKET}).encode()))
    assert made.status == 200, made


# -- uploads to Google


@dataclass
class _GoogleUploads:
    """Uploads of the XML API as uploads of the JSON API. Parts are kept here until the upload is complete."""

    send: Send
    parts: dict[str, dict[int, bytes]] = field(default_factory=dict)

    def __call__(self, request: Request) -> Answer:
        target = urlsplit(request.path)
        if target.path.startswith(("/storage/v1", "/upload/", "/download/")):
            return self.send(request)
        asked = {name: values[0] for name, values in parse_qs(target.query, keep_blank_values=True).items()}
        headers = {name.lower(): value for name, value in request.headers.items()}
        bucket, _, name = unquote(target.path.lstrip("/")).partition("/")
        match request.method:
            case "GET" if "list-type" in asked:
                return _listing(self.send(request), "Contents", "Key", asked.get("start-after"))
            case "POST" if "uploads" in asked:
                upload = uuid.uuid4().hex
                self.parts[upload] = {}
                return _xml(f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>")
            case "PUT" if "partNumber" in asked:
                self.parts[asked["uploadId"]][int(asked["partNumber"])] = request.body
                return Answer(200, [("ETag", f'"{uuid.uuid4().hex}"')], b"")
            case "POST" if "uploadId" in asked:
                parts = self.parts.pop(asked["uploadId"])
                done = self._upload(bucket, name, headers, b"".join(parts[number] for number in sorted(parts)))
                tag = dict(done.headers).get("ETag", "")
                return done._replace(body=f"<CompleteMultipartUploadResult><ETag>{tag}</ETag></CompleteMultipartUploadResult>".encode())
            case "DELETE" if "uploadId" in asked:
                self.parts.pop(asked["uploadId"], None)
                return Answer(204, [], b"")
            case "PUT":
                return self._upload(bucket, name, headers, request.body)
            case "GET" | "HEAD":
                answer = self.send(request)
                wanted = headers.get("if-match")
                return Answer(412, [], b"") if wanted not in (None, dict(answer.headers).get("Etag", wanted)) else answer
        return self.send(request)

    def _upload(self, bucket: str, name: str, headers: Mapping[str, str], body: bytes) -> Answer:
        condition = headers.get("x-goog-if-generation-match")
        more = "" if condition is None else f"&ifGenerationMatch={condition}"
        if source := headers.get("x-goog-copy-source"):
            of, _, old = unquote(source).partition("/")
            path = f"/storage/v1/b/{of}/o/{quote(old, '')}/rewriteTo/b/{bucket}/o/{quote(name, '')}?{more[1:]}"
        else:
            path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(name, '')}{more}"
        kind = headers.get("content-type", "application/octet-stream")
        answer = self.send(Request("POST", path, {"Content-Type": kind}, body))
        if answer.status != 200:
            code = {404: "NoSuchKey" if source else "NoSuchBucket", 412: "PreconditionFailed"}.get(answer.status, "InternalError")
            return Answer(answer.status, [], f"<Error><Code>{code}</Code></Error>".encode())
        found = json.loads(answer.body)
        found = found.get("resource", found)
        return Answer(200, [("ETag", f'"{found["etag"]}"'), ("x-goog-generation", found["generation"])], b"")


def _azure(send: Send) -> Send:
    def sent(request: Request) -> Answer:
        asked = parse_qs(urlsplit(request.path).query)
        return _listing(send(request), "Blob", "Name", asked.get("startFrom", [None])[0])

    return sent


def _listing(answer: Answer, element: str, name: str, start: str | None) -> Answer:
    """The listing from this name on."""
    if start is None:
        return answer

    def kept(found: re.Match[str]) -> str:
        return found[0] if unescape(found[1]) >= start else ""

    pattern = rf"<{element}>.*?<{name}>(.*?)</{name}>.*?</{element}>"
    return answer._replace(body=re.sub(pattern, kept, answer.body.decode(), flags=re.DOTALL).encode())


def _xml(text: str) -> Answer:
    return Answer(200, [("Content-Type", "application/xml")], text.encode())


def _iceberg_in_s3(at: str, key: str) -> dict[str, str]:
    keys = {"s3.access-key-id": KEY, "s3.secret-access-key": f"env:{STORE_SECRET}"}
    return {"warehouse": f"s3://{BUCKET}/{key}", "s3.endpoint": f"http://{at}", "s3.region": "us-east-1", **keys}


def _iceberg_in_google(at: str, key: str) -> dict[str, str]:
    token = {"gcs.oauth2.token": f"env:{STORE_SECRET}", "gcs.oauth2.token-expires-at": "4000000000000"}
    return {"warehouse": f"gs://{BUCKET}/{key}", "gcs.service.host": f"http://{at}", **token}


def _iceberg_in_azure(at: str, key: str) -> dict[str, str]:
    where = {f"adls.{name}-storage-{field}": value for name in ("blob", "dfs") for field, value in (("authority", at), ("scheme", "http"))}
    return {
        "warehouse": f"abfss://{BUCKET}@{ACCOUNT}.dfs.core.windows.net/{key}",
        "adls.account-key": f"env:{STORE_SECRET}",
        **where,
    }


KINDS = {
    "s3": StoreKind(
        scheme="s3",
        start=_start_moto,
        make_bucket=_make_bucket_of_s3,
        options=lambda at: {"endpoint": f"http://{at}"},
        iceberg=_iceberg_in_s3,
        variables={"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET},
        credentials=lambda secret: {"access_key_id": KEY, "secret_access_key": secret},
        secret=SECRET,
        second_part="PUT .*partNumber=2",
    ),
    "gs": StoreKind(
        scheme="gs",
        start=_start_fake_gcs,
        make_bucket=_make_bucket_of_google,
        options=lambda at: {"endpoint": f"http://{at}"},
        iceberg=_iceberg_in_google,
        variables={"GOOGLE_SERVICE_ACCOUNT_KEY": NO_ACCOUNT},
        credentials=lambda secret: {"service_account_key": secret},
        secret=NO_ACCOUNT,
        second_part="PUT .*partNumber=2",
        translated=_GoogleUploads,
        conditions=("x-goog-if-generation-match",),
    ),
    "az": StoreKind(
        scheme="az",
        start=_start_azurite,
        make_bucket=_make_container,
        options=lambda at: {"endpoint": f"http://{at}/{ACCOUNT}"},
        iceberg=_iceberg_in_azure,
        variables={"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY},
        credentials=lambda secret: {"account_name": ACCOUNT, "account_key": secret},
        secret=ACCOUNT_KEY,
        second_part="PUT .*comp=block&",
        translated=_azure,
    ),
}
