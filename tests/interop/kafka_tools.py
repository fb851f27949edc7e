"""Apache Kafka's command-line tools: all commands of a test run in one JVM."""

from __future__ import annotations

import base64
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench import kafka as apache
from bench import maven
from bench.maven import PeerUnavailable

#: Runs a tool with arguments; its output. `code`: the expected exit code; None: any. `text`: its standard input.
Run = Callable[..., str]


def tools_command(distribution: apache.Distribution) -> list[str]:
    """The start of the command of a JVM with the tools of a release. Skips the test if they cannot be had.

    The distribution's jars are first: a JVM uses an archive of classes only if its class path begins with the jars of the archive.
    """
    try:
        _, tools = maven.newest("kafka-tools", "org.apache.kafka", "kafka-tools", pattern=re.escape(distribution.version))
    except PeerUnavailable as why:
        pytest.skip(f"Kafka's tools cannot be had here: {why}")
    quick = ("-Xmx256M", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *distribution.options)
    return [distribution.java.path, *quick, "-cp", f"{distribution.lib}/*{os.pathsep}{tools}/*"]


@contextmanager
def kafka_tools(distribution: apache.Distribution) -> Iterator[Run]:
    """The tools of a release, by class name. Skips the test if they cannot be had."""
    source = Path(__file__).with_name("foreign") / "KafkaTools.java"
    command = [*tools_command(distribution), str(source)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None and process.stdout is not None, "they are pipes"

        def tool(name: str, *arguments: str, code: int | None = 0, text: str = "") -> str:
            assert process.stdin is not None and process.stdout is not None, "they are pipes"
            given = base64.b64encode(text.encode()).decode()
            process.stdin.write("\t".join([given, name, *arguments]).encode() + b"\n")
            process.stdin.flush()
            ended, _, size = process.stdout.readline().decode().partition(" ")
            output = process.stdout.read(int(size)).decode()
            process.stdout.readline()
            assert code in (None, int(ended)), output
            return output

        yield tool
        process.stdin.close()
