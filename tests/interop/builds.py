"""Programs in other languages, built from `foreign/` with packages of their registries, and cached.

The cache is `~/.cache/ottla-interop` (or `$OTTLA_INTEROP_CACHE`). Without a compiler or a registry the test is skipped with the name of
what is missing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from bench import maven
from bench.maven import Java, PeerUnavailable

FOREIGN = Path(__file__).parent / "foreign"
CACHE = Path(os.environ.get("OTTLA_INTEROP_CACHE") or Path.home() / ".cache" / "ottla-interop")
FRANZ_GO, KAFKAJS = "v1.19.5", "2.2.4"
BUILD_TIMEOUT_S = 300


def run(command: Sequence[str | Path], **more: object) -> str:
    """Output of a program. A failure of the program fails the test."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=90, **more)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-3000:]}"
    return str(done.stdout)


def built(name: str, version: str, source: Path, build: Callable[[Path], None]) -> Path:
    """The directory of a built program, rebuilt when its source or version changes. Skips if the build is impossible."""
    target = CACHE / f"{name}-{hashlib.sha256(version.encode() + source.read_bytes()).hexdigest()[:16]}"
    if target.exists():
        return target
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        place = Path(scratch) / "build"
        place.mkdir()
        shutil.copy2(source, place / source.name)
        build(place)
        if not target.exists():
            place.rename(target)
    return target


def built_by(place: Path, *commands: Sequence[str], missing: str) -> None:
    """Runs the steps of a build. A failed step means that the registry is unreachable."""
    for command in commands:
        try:
            done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pytest.skip(f"{missing}: {command[0]} did not end within {BUILD_TIMEOUT_S} s")
        if done.returncode != 0:
            output = (done.stdout + done.stderr).strip().splitlines()
            pytest.skip(f"{missing}: {' '.join(command[:3])} failed: {output[-1][:200] if output else ''}")


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
