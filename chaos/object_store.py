"""moto's S3 server on a loopback port, and what a pipeline needs to keep its checkpoint or a table there."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

from bench.maven import resolved

from ottla.lake.storage import location

if TYPE_CHECKING:
    from ottla.lake.table.iceberg_catalog import IcebergPlace

BUCKET = "chaos"
#: The variable that has the secret, for this program and for pipelines.
SECRET = "CHAOS_S3_SECRET"
#: Fetching the SDK of 650 MB takes longer than other packages.
FETCH_S = 1800


def hadoop_aws() -> str:
    """The name of hadoop-aws for this Spark's Hadoop, with its version, as `bench.maven` keeps it."""
    import pyspark

    (api,) = (Path(pyspark.__path__[0]) / "jars").glob("hadoop-client-api-*.jar")
    return f"hadoop-aws-{api.stem.removeprefix('hadoop-client-api-')}"


def started(*words: str) -> tuple[subprocess.Popen[str], str]:
    """A server in a Python process of its own, and its HOST:PORT, which it names as Flask does. Raises: RuntimeError."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None, "it is a pipe"
    for line in process.stderr:
        if found := re.search(r"Running on http://(127\.0\.0\.1:\d+)", line):
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return process, found[1]
    raise RuntimeError(f"{' '.join(words)} did not start; moto's server needs: pip install 'moto[s3,server]'")


def moto() -> tuple[subprocess.Popen[str], str]:
    """moto's S3 server on a free port, as `started`."""
    return started("-m", "moto.server", "-H", "127.0.0.1", "-p", "0")


class S3Store:
    """The server, with one bucket. `hadoop`: fetches hadoop-aws for this Spark's Hadoop, unless it is in the cache.

    Raises: PeerUnavailable.
    """

    checkpoint = f"s3a://{BUCKET}/chaos"

    def __init__(self, *, hadoop: bool = True) -> None:
        self._hadoop = hadoop
        #: Of the last table of a pipeline file, [spark].
        self.settings = ""

    def __enter__(self) -> Self:
        if self._hadoop:
            name = hadoop_aws()
            jars = resolved(name, f"org.apache.hadoop:hadoop-aws:{name.removeprefix('hadoop-aws-')}", timeout_s=FETCH_S)
            # On the class path, since Spark would copy each of `jars` at each start.
            self.settings = f'"driver.extraClassPath" = "{jars}/*"\n"hadoop.fs.s3a.path.style.access" = true\n'
        self._process, address = moto()
        self.environment = {
            **os.environ,
            "AWS_ACCESS_KEY_ID": "chaos",
            "AWS_SECRET_ACCESS_KEY": "of-no-use-elsewhere",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://{address}",
            SECRET: "of-no-use-elsewhere",
        }
        os.environ[SECRET] = self.environment[SECRET]
        options = {"endpoint": f"http://{address}", "allow_http": "true", "access_key_id": "chaos", "secret_access_key": f"env:{SECRET}"}
        #: The place of a Delta table, and its lines in the table of a sink.
        self.table = location(f"s3://{BUCKET}/table", options)
        self.lines = f'path = "{self.table.url}"\nstorage = {_inline(options)}'
        connection = http.client.HTTPConnection(address, timeout=30)
        connection.request("PUT", f"/{BUCKET}")
        assert connection.getresponse().status == 200, "a new server has no bucket"
        connection.close()
        return self

    def iceberg(self, directory: Path) -> tuple[IcebergPlace, str]:
        """An Iceberg table whose catalog is a file in a directory, and its lines in the table of a sink."""
        options = {
            "type": "sql",
            "uri": f"sqlite:///{directory}/catalog.sqlite",
            "warehouse": f"s3://{BUCKET}/iceberg",
            "s3.endpoint": self.environment["AWS_ENDPOINT_URL"],
            "s3.region": "us-east-1",
            "s3.access-key-id": "chaos",
            "s3.secret-access-key": f"env:{SECRET}",
        }
        from ottla.lake.table.iceberg_catalog import in_catalog

        place = in_catalog("chaos", "chaos.numbers", options)
        return place, f'catalog = "chaos"\ntable = "chaos.numbers"\ncatalog_options = {_inline(options)}'

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def _inline(options: Mapping[str, str]) -> str:
    """An inline table of TOML."""
    return f"{{ {', '.join(f'{json.dumps(name)} = {json.dumps(value)}' for name, value in options.items())} }}"
