"""Programs of other registries (Go, npm, Maven), built once and cached.

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

CACHE = Path(os.environ.get("OTTLA_INTEROP_CACHE") or Path.home() / ".cache" / "ottla-interop")
BUILD_TIMEOUT_S = 300


def built(name: str, version: str, source: Path | None, build: Callable[[Path], None]) -> Path:
    """The directory of a built program, rebuilt when its source or version changes. Skips if the build is impossible."""
    content = b"" if source is None else source.read_bytes()
    target = CACHE / f"{name}-{hashlib.sha256(version.encode() + content).hexdigest()[:16]}"
    if target.exists():
        return target
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        place = Path(scratch) / "build"
        place.mkdir()
        if source is not None:
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
