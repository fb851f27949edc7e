"""The tools of a release: version and notes from one place, and what belongs into distributions."""

from pathlib import Path

import pytest
from tools import dist, release


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout with version 0.2.0, an older section and two fragments."""
    (tmp_path / "src/ottla/base").mkdir(parents=True)
    (tmp_path / release.VERSION_FILE).write_text('"""The version."""\n\nVERSION = "0.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(f"{release.PREAMBLE}\n## 0.1.0\n\nThe first.\n")
    (tmp_path / release.CHART).parent.mkdir(parents=True)
    (tmp_path / release.CHART).write_text('name: ottla\nversion: 0.2.0\nappVersion: "0.2.0"\n')
    (tmp_path / "changelog.d").mkdir()
    (tmp_path / "changelog.d/b.md").write_text("- Two items.\n- In a list.\n")
    (tmp_path / "changelog.d/a.md").write_text("A paragraph\nof two lines.\n")
    return tmp_path


def test_a_release_moves_the_fragments_into_the_changelog(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["prepare", "0.3.0"], tree) == 0
    section = "- A paragraph\n  of two lines.\n- Two items.\n- In a list."
    assert (tree / "CHANGELOG.md").read_text() == f"{release.PREAMBLE}\n## 0.3.0\n\n{section}\n\n## 0.1.0\n\nThe first.\n"
    assert 'VERSION = "0.3.0"' in (tree / release.VERSION_FILE).read_text() and not list((tree / "changelog.d").iterdir())
    assert (tree / release.CHART).read_text() == 'name: ottla\nversion: 0.3.0\nappVersion: "0.3.0"\n'
    assert release.chart_version("0.3.0rc1") == "0.3.0-rc1"
    capsys.readouterr()
    assert release.main(["notes", "0.3.0"], tree) == 0
    assert capsys.readouterr().out == f"{section}\n"


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("0.3", "is no version"),
        ("0.1.9", "is before the present version, 0.2.0"),
        ("0.2.0rc1", "is before the present version"),
        ("0.1.0", "has a section 0.1.0 already"),
    ],
)
def test_a_version_that_cannot_follow_changes_nothing(tree: Path, version: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_text() for path in tree.rglob("*") if path.is_file()}
    assert release.main(["prepare", version], tree) == 1
    assert problem in capsys.readouterr().err
    assert {path: path.read_text() for path in tree.rglob("*") if path.is_file()} == before


def test_the_changelog_and_the_fragments_of_this_tree_can_be_released(capsys: pytest.CaptureFixture[str]) -> None:
    assert (dist.ROOT / "CHANGELOG.md").read_text().startswith(release.PREAMBLE)
    assert release.main(["notes"]) == 0
    assert all(line.startswith(("- ", "  ", "|")) for line in capsys.readouterr().out.splitlines() if line)


def test_a_wheel_has_every_compiled_module_and_no_source_of_them() -> None:
    name = "ottla-0.2.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    good = [*dist.IN_WHEELS, *(f"ottla/{module}.cpython-311-x86_64-linux-gnu.so" for module in dist.compiled_modules())]
    assert dist.problems_of_wheel(name, 2**20, good) == []
    assert dist.problems_of_wheel(name, 4 * 2**20, [*good, "ottla/records/_native.c"]) == [
        "ottla/records/_native.c does not belong into a wheel",
        "it has 4.0 MiB; at most 3",
    ]
    assert dist.problems_of_wheel(name, 2**20, [path for path in good if "server/shell" not in path]) == ["server/shell is not compiled"]
    assert dist.problems_of_wheel("ottla-0.2.0-py3-none-any.whl", 2**20, dist.IN_WHEELS) == []


def test_sources_carry_docs_and_examples_and_nothing_that_was_built() -> None:
    members = [f"ottla-0.2.0/{path}" for path in dist.IN_SOURCES]
    assert dist.problems_of_sources("ottla-0.2.0", members) == []
    assert [path for path in dist.IN_SOURCES + tuple(f"src/{path}" for path in dist.IN_WHEELS) if not (dist.ROOT / path).exists()] == []
    without_docs = [path for path in members if "/docs/" not in path]
    assert dist.problems_of_sources("ottla-0.2.0", [*without_docs, "ottla-0.2.0/src/ottla/x.so"]) == [
        "docs/operating.md is missing",
        "docs/reference/cli.md is missing",
        "ottla-0.2.0/src/ottla/x.so was made by a build",
    ]
