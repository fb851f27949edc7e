"""``make audit``: looks up known vulnerabilities of the locked dependencies.

    python tools/audit.py LOCK [--advisories DIRECTORY]

Without ``--advisories`` it asks PyPI through pip-audit. A mirror of PyPI usually has packages only, and no answer about vulnerabilities.
With it, a copy of advisories in OSV's format answers: a checkout of github.com/pypa/advisory-database, from which PyPI takes its own, or an
unpacked export of OSV's. An old copy does not know newer vulnerabilities, so it passes only while its newest advisory is at most 30 days
old.

Exit code 0: all packages were checked, and no vulnerability is known. 1: some are known. 2: nothing can be said about some packages, or
about the last weeks.
"""

import argparse
import datetime
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

CLEAN, VULNERABLE, UNKNOWN = 0, 1, 2
#: Age of the newest advisory above which a copy is old: PyPI publishes several a week.
AGE_MAX = datetime.timedelta(days=30)


@dataclass
class Audit:
    """What was found out."""

    #: Packages with a line for each vulnerability.
    vulnerable: dict[str, list[str]] = field(default_factory=dict)
    checked: int = 0
    #: Packages of which nothing is known.
    unchecked: list[str] = field(default_factory=list)
    #: Why the result is incomplete, besides that.
    doubts: list[str] = field(default_factory=list)

    def report(self) -> int:
        """Prints the result; returns the exit code."""
        for lines in self.vulnerable.values():
            print("\n".join(lines))
        if self.checked:
            print(f"{self.checked} packages were checked, {len(self.vulnerable)} have known vulnerabilities")
        if self.unchecked:
            self.doubts.append(f"{len(self.unchecked)} packages could not be checked: {', '.join(self.unchecked)}")
        for doubt in self.doubts:
            print(f"NOT AUDITED: {doubt}", file=sys.stderr)
        return VULNERABLE if self.vulnerable else UNKNOWN if self.doubts or not self.checked else CLEAN


def locked(lock: Path) -> dict[str, str]:
    """Versions of a lock file by name of package."""
    found = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;\\]+)", lock.read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


# PyPI's answer.


def online(lock: Path) -> Audit:
    command = [str(Path(sys.executable).parent / "pip-audit"), "--requirement", str(lock), "--disable-pip", "--require-hashes"]
    try:
        done = subprocess.run([*command, "--format", "json", "--progress-spinner", "off"], capture_output=True, text=True, check=False)
    except OSError as error:
        return Audit(doubts=[f"pip-audit cannot be run: {error}"])
    return answered(done.stdout, done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"])


def answered(output: str, errors: list[str]) -> Audit:
    """What pip-audit said, with its last line of errors."""
    try:
        packages = json.loads(output)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return Audit(doubts=[f"the database of vulnerabilities cannot be reached: {errors[-1]}"])
    found = Audit()
    for package in packages:
        if "skip_reason" in package:
            found.unchecked.append(package["name"])
            continue
        found.checked += 1
        for one in package.get("vulns", []):
            note(found, package["name"], package["version"], one["id"], one.get("fix_versions", []))
    return found


def note(found: Audit, name: str, version: str, advisory: str, fixed: list[str]) -> None:
    line = f"{name} {version}: {advisory}, fixed in {', '.join(fixed) or 'no version'}"
    found.vulnerable.setdefault(name, []).append(line)


# A copy of advisories.


def offline(lock: Path, directory: Path, today: datetime.date) -> Audit:
    packages, newest, found = locked(lock), datetime.date.min, Audit()
    for advisory in advisories(directory):
        newest = max(newest, published(advisory))
        if advisory.get("withdrawn"):
            continue
        for affected in advisory.get("affected") or []:
            name = canonicalize_name((affected.get("package") or {}).get("name", ""))
            if (affected.get("package") or {}).get("ecosystem") == "PyPI" and name in packages and concerns(affected, packages[name]):
                note(found, name, packages[name], advisory["id"], fixes(affected))
                break
    found.checked = len(packages)
    if newest == datetime.date.min:
        return Audit(doubts=[f"there are no advisories in {directory}"])
    print(f"the newest advisory in {directory} is of {newest}")
    if today - newest > AGE_MAX:
        found.doubts.append(f"the copy of advisories ends at {newest}; later ones are unknown")
    return found


def advisories(directory: Path) -> Iterator[dict[str, Any]]:
    """All advisories of a directory, as YAML or JSON. Raises: ValueError for a file that is neither."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for path in sorted(directory.rglob("*")):
        if path.suffix == ".json":
            found = json.loads(path.read_text())
        elif path.suffix in (".yaml", ".yml"):
            found = yaml.load(path.read_text(), loader)
        else:
            continue
        if isinstance(found, dict) and "id" in found and "affected" in found:
            yield found


def published(advisory: dict[str, Any]) -> datetime.date:
    # YAML has it as a time, JSON as text.
    return datetime.date.fromisoformat(str(advisory.get("published") or advisory.get("modified") or datetime.date.min)[:10])


def concerns(affected: dict[str, Any], version: str) -> bool:
    """Whether an advisory is about a version. Source: the evaluation in OSV's schema."""
    if version in map(str, affected.get("versions") or []):
        return True
    return any(within(span.get("events") or [], version) for span in affected.get("ranges") or [] if span.get("type") == "ECOSYSTEM")


def within(events: Iterable[dict[str, Any]], version: str) -> bool:
    """Whether the last event before or at a version says that it is affected."""
    asked, affected = Version(version), False
    for event in sorted(events, key=when):
        ((kind, text),) = event.items()
        at = lowest(text)
        if kind == "introduced" and asked >= at:
            affected = True
        elif (kind == "fixed" and asked >= at) or (kind == "last_affected" and asked > at):
            affected = False
    return affected


def when(event: dict[str, Any]) -> tuple[Version, bool]:
    ((kind, text),) = event.items()
    return lowest(text), kind != "introduced"


def lowest(text: object) -> Version:
    """A version of an event; 0 is before all."""
    try:
        return Version("0.dev0" if str(text) == "0" else str(text))
    except InvalidVersion:
        return Version("0.dev0")


def fixes(affected: dict[str, Any]) -> list[str]:
    events = (event for span in affected.get("ranges") or [] if span.get("type") == "ECOSYSTEM" for event in span.get("events") or [])
    return [str(event["fixed"]) for event in events if "fixed" in event]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Look up known vulnerabilities of locked dependencies.")
    parser.add_argument("lock", type=Path)
    parser.add_argument("--advisories", type=Path, help="directory with advisories in OSV's format, instead of PyPI")
    options = parser.parse_args(arguments)
    found = offline(options.lock, options.advisories, datetime.date.today()) if options.advisories else online(options.lock)
    return found.report()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
