"""Makes the version and the release notes of a release, each from one place.

    release.py prepare VERSION   sets base/version.py and the Helm chart, and moves the fragments of changelog.d/ into CHANGELOG.md
    release.py notes [VERSION]   prints the notes of a version; without one, those of the next release from the fragments

A fragment is a list of Markdown, or a paragraph, which becomes an item. docs/releasing.md has the steps of a release.
"""

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSION_FILE, CHART = "src/ottla/base/version.py", "deploy/helm/ottla/Chart.yaml"
PREAMBLE = "# Changelog\n\nChanges of the next release are in [changelog.d/](changelog.d/), one file per change.\n"
#: MAJOR.MINOR.PATCH, with an optional pre-release.
VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:(a|b|rc)(\d+))?")


class NotReleasable(Exception):
    """A sentence that says why, and what to do."""


def order_of(version: str) -> tuple[int, int, int, str, int]:
    """Sorts versions; a pre-release is before its release. Raises: NotReleasable."""
    found = VERSION.fullmatch(version)
    if found is None:
        raise NotReleasable(f"{version!r} is no version; write MAJOR.MINOR.PATCH, such as 0.3.0, or 0.3.0rc1")
    major, minor, patch, kind, number = found.groups()
    return int(major), int(minor), int(patch), kind or "z", int(number or 0)


def item(fragment: str) -> str:
    """A fragment as items of a list."""
    text = fragment.strip()
    return text if text.startswith("- ") else "- " + text.replace("\n", "\n  ")


def next_notes(root: Path) -> str:
    """The items of all fragments, by file name."""
    return "\n".join(item(path.read_text()) for path in sorted((root / "changelog.d").glob("*.md")))


def notes(root: Path, version: str) -> str:
    """The section of a version in the changelog. Raises: NotReleasable."""
    found = re.search(rf"^## {re.escape(version)}\n(.*?)(?=^## |\Z)", (root / "CHANGELOG.md").read_text(), re.MULTILINE | re.DOTALL)
    if found is None:
        raise NotReleasable(f"CHANGELOG.md has no section {version}; make it with: python tools/release.py prepare {version}")
    return found[1].strip()


def chart_version(version: str) -> str:
    """The version in the form that Helm asks for: 0.3.0-rc1."""
    return re.sub(r"(?<=\d)(a|b|rc)", r"-\1", version)


def prepare(root: Path, version: str) -> None:
    """Changes the version, the changelog and the fragments; nothing if one of them does not allow it. Raises: NotReleasable."""
    source = (root / VERSION_FILE).read_text()
    present = re.search(r'^VERSION = "(.*)"$', source, re.MULTILINE)
    if present is None:
        raise NotReleasable(f'{VERSION_FILE} has no line VERSION = "..."')
    changelog = (root / "CHANGELOG.md").read_text()
    if not changelog.startswith(PREAMBLE):
        raise NotReleasable("CHANGELOG.md does not begin with its usual lines; restore them")
    if f"\n## {version}\n" in changelog:
        raise NotReleasable(f"CHANGELOG.md has a section {version} already; choose the next version")
    if order_of(version) < order_of(present[1]):
        raise NotReleasable(f"{version} is before the present version, {present[1]}; choose a later one")
    items = next_notes(root)
    if not items:
        raise NotReleasable("changelog.d/ has no fragments: there is nothing to release")
    (root / VERSION_FILE).write_text(source.replace(present[0], f'VERSION = "{version}"'))
    chart = (root / CHART).read_text()
    chart = re.sub(r"^version: .*$", f"version: {chart_version(version)}", chart, flags=re.MULTILINE)
    (root / CHART).write_text(re.sub(r"^appVersion: .*$", f'appVersion: "{version}"', chart, flags=re.MULTILINE))
    (root / "CHANGELOG.md").write_text(f"{PREAMBLE}\n## {version}\n\n{items}\n{changelog.removeprefix(PREAMBLE)}")
    for path in (root / "changelog.d").glob("*.md"):
        path.unlink()


def main(arguments: list[str], root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("prepare").add_argument("version")
    commands.add_parser("notes").add_argument("version", nargs="?")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "prepare":
            prepare(root, chosen.version)
            print(f"version {chosen.version}: read CHANGELOG.md, run make docs, commit, tag v{chosen.version}, make dist")
        else:
            print(next_notes(root) if chosen.version is None else notes(root, chosen.version))
    except NotReleasable as error:
        print(f"release.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
