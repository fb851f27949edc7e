"""moto's S3 server on a loopback port, and what a pipeline needs to keep its checkpoint there."""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

from bench.maven import resolved

BUCKET = "checkpoints"
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
    """The server, with one bucket. Fetches hadoop-aws for this Spark's Hadoop, unless it is in the cache. Raises: PeerUnavailable."""

    checkpoint = f"s3a://{BUCKET}/chaos"

    def __enter__(self) -> Self:
        name = hadoop_aws()
        jars = resolved(name, f"org.apache.hadoop:hadoop-aws:{name.removeprefix('hadoop-aws-')}", timeout_s=FETCH_S)
        # Of the last table of the file, [spark]. On the class path, since Spark would copy each of `jars` at each start.
        self.settings = f'"driver.extraClassPath" = "{jars}/*"\n"hadoop.fs.s3a.path.style.access" = true\n'
        self._process, address = moto()
        self.environment = {
            **os.environ,
            "AWS_ACCESS_KEY_ID": "chaos",
            "AWS_SECRET_ACCESS_KEY": "of-no-use-elsewhere",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://{address}",
        }
        connection = http.client.HTTPConnection(address, timeout=30)
        connection.request("PUT", f"/{BUCKET}")
        assert connection.getresponse().status == 200, "a new server has no bucket"
        connection.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
