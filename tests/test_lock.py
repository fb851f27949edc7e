"""The lock file of CI: what is installed there is named with its hashes."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "tools" / "requirements.lock"


def locked() -> dict[str, str]:
    """Versions by name of package."""
    found = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;\\]+)", LOCK.read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def test_the_lock_satisfies_every_dependency_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [Requirement(text) for text in project["dependencies"]]
    pending = ["dev"]
    while pending:
        for one in map(Requirement, extras[pending.pop()]):
            if one.name == "ottla":
                pending += one.extras
            else:
                wanted.append(one)
    versions = locked()
    stale = [str(one) for one in wanted if not one.specifier.contains(versions.get(canonicalize_name(one.name), "0"), prereleases=True)]
    assert not stale, f"run make lock: {stale}"


def test_every_package_of_the_lock_has_a_hash() -> None:
    entries = re.split(r"\n(?=\S)", LOCK.read_text())
    without = [entry.split("\n")[0] for entry in entries if "==" in entry and "--hash=sha256:" not in entry]
    assert not without
