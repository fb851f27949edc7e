"""Programs in other languages, built from `foreign/` with packages of their registries, and cached (`cached_builds`)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from bench import maven
from bench.maven import Java, PeerUnavailable

from cached_builds import built, built_by

FOREIGN = Path(__file__).parent / "foreign"
FRANZ_GO, KAFKAJS = "v1.19.5", "2.2.4"


def run(command: Sequence[str | Path], **more: object) -> str:
    """Output of a program. A failure of the program fails the test."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=90, **more)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-3000:]}"
    return str(done.stdout)


def java_built(name: str) -> tuple[Java, str]:
    """Apache Kafka's Java client and a program for it: the Java that runs it, and the class path."""
    try:
        runtime = maven.java()
        version, lib = maven.newest("kafka-clients", "org.apache.kafka", "kafka-clients", pattern=r"4\.\d+\.\d+")
    except PeerUnavailable as why:
        pytest.skip(f"Apache Kafka's Java client cannot be had here: {why}")
    compiler = Path(runtime.home) / "bin" / "javac"
    found = str(compiler) if compiler.exists() else shutil.which("javac")
    if not found:
        pytest.skip("there is a Java here, but no compiler (javac)")

    def build(place: Path) -> None:
        run([found, "-cp", f"{lib}/*", "-d", place, place / f"{name}.java"])

    classes = built(name.lower(), version, FOREIGN / f"{name}.java", build)
    return runtime, f"{classes}{os.pathsep}{lib}/*"


def go_built(source: str, *modules: str) -> Path:
    """A Go program with the modules it needs."""
    if shutil.which("go") is None:
        pytest.skip("Go is not installed")

    def build(place: Path) -> None:
        # A compiler that does not optimise takes half the time for franz-go.
        compiling = ["env", "CGO_ENABLED=0", "go", "build", "-gcflags=all=-N -l", "-ldflags=-s -w", "-o", "client", "."]
        steps = (["go", "mod", "init", "ottla.test/client"], ["go", "get", *modules], compiling)
        built_by(place, *steps, missing=f"{modules[0]} cannot be had here")

    return built(source.removesuffix(".go"), " ".join(modules), FOREIGN / source, build) / "client"


def node_built(source: str) -> Path:
    """A Node.js program with KafkaJS."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node.js with npm is not installed")

    def build(place: Path) -> None:
        (place / "package.json").write_text('{"private": true, "type": "module"}')
        step = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", f"kafkajs@{KAFKAJS}"]
        built_by(place, step, missing="KafkaJS cannot be had here")

    return built(source.removesuffix(".mjs"), KAFKAJS, FOREIGN / source, build) / source
