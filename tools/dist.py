"""``make dist``: builds the distributions of a release, and checks what is in them.

    dist.py build [--twice]   builds dist/*.tar.gz and dist/*.whl; --twice: builds both again and compares every byte
    dist.py check FILE...     checks distributions that were built elsewhere, by cibuildwheel for instance
    dist.py installed         checks the installed package: compiled modules, command line

The time of all files in the archives is that of the last commit, unless ``SOURCE_DATE_EPOCH`` is set.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Collection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Decision 56 has what the bytes are spent on.
WHEEL_BYTES_MAX = 11 * 2**19
#: Not for users: translated or generated from something else in the distribution.
NOT_IN_WHEELS = (".c", ".h", ".pyx", ".pxi", ".pxd")
IN_WHEELS = (
    "ottla/py.typed",
    "ottla/base/version.py",
    "ottla/records/_pure.py",
    "ottla/console/static/console.css",
    "pyspark_ottla/__init__.py",
)
IN_SOURCES = (
    "README.md", "LICENSE", "CHANGELOG.md", "docs/operating.md", "docs/reference/cli.md", "examples/README.md",
    "deploy/prometheus/alerts.yml", "src/ottla/records/_native.pyx", "src/ottla/records/_native_shared.pxi", "tests/test_tidy.py",
    "tools/requirements.lock",
)  # fmt: skip


def version(root: Path = ROOT) -> str:
    found = re.search(r'^VERSION = "(.*)"$', (root / "src/ottla/base/version.py").read_text(), re.MULTILINE)
    assert found is not None, "the version has one place"
    return found[1]


def compiled_modules(root: Path = ROOT) -> list[str]:
    """Modules that a wheel of a platform has compiled, without ``ottla/``."""
    lists = re.findall(r'^(?:HOT|WARM) = """(.*?)"""', (root / "setup.py").read_text(), re.DOTALL | re.MULTILINE)
    assert len(lists) == 2, "setup.py lists the modules"
    return [*" ".join(lists).split(), "records/_native", "codecs/_native"]


def problems_of_wheel(name: str, size: int, members: Collection[str]) -> list[str]:
    """Sentences about what is wrong with a wheel. ``members``: paths in it."""
    found = [
        f"{member} does not belong into a wheel" for member in members if member.endswith(NOT_IN_WHEELS) or member.startswith("tests/")
    ]
    found += [f"{path} is missing" for path in IN_WHEELS if path not in members]
    if size > WHEEL_BYTES_MAX:
        found.append(f"it has {size / 2**20:.1f} MiB; at most {WHEEL_BYTES_MAX / 2**20:.1f}")
    if not name.endswith("-py3-none-any.whl"):
        objects = {member.split(".")[0] for member in members if member.endswith(".so")}
        found += [f"{module} is not compiled" for module in compiled_modules() if f"ottla/{module}" not in objects]
    return found


def problems_of_sources(top: str, members: Collection[str]) -> list[str]:
    """Sentences about what is wrong with a source distribution, all of whose members are below ``top``."""
    found = [f"{path} is missing" for path in IN_SOURCES if f"{top}/{path}" not in members]
    built = (".c", ".so", ".pyc")
    return found + [f"{member} was made by a build" for member in members if member.endswith(built) or "/__pycache__/" in member]


def problems(path: Path) -> list[str]:
    """Of a wheel or a source distribution."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            return problems_of_wheel(path.name, path.stat().st_size, archive.namelist())
    with tarfile.open(path) as archive:
        return problems_of_sources(path.name.removesuffix(".tar.gz"), archive.getnames())


def check(paths: list[Path]) -> int:
    wrong = 0
    for path in paths:
        found = problems(path)
        wrong += len(found)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        print(f"{path.name}  {path.stat().st_size / 2**20:.2f} MiB  sha256 {digest}")
        for problem in found:
            print(f"  {problem}")
    return 1 if wrong or not paths else 0


def build(where: Path) -> list[Path]:
    """The source distribution, and a wheel that is built from it."""
    environment = {"SOURCE_DATE_EPOCH": last_commit(), "OTTLA_REQUIRE_NATIVE": "1", **os.environ}
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(where), str(ROOT)], check=True, env=environment, stdout=subprocess.DEVNULL
    )
    return sorted([*where.glob("*.tar.gz"), *where.glob("*.whl")])


def last_commit() -> str:
    """Seconds since 1970."""
    done = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def differing(first: list[Path], second: list[Path]) -> list[str]:
    """Names of distributions that two builds did not make alike."""
    bytes_of = [{path.name: path.read_bytes() for path in paths} for paths in (first, second)]
    return sorted(name for name in bytes_of[0].keys() | bytes_of[1].keys() if bytes_of[0].get(name) != bytes_of[1].get(name))


def installed() -> int:
    """Checks the package that this Python imports, which is not the one in the checkout."""
    from ottla.base.version import VERSION
    from ottla.records import NATIVE
    from ottla.server import shell

    told = subprocess.run([sys.executable, "-m", "ottla", "--version"], check=True, capture_output=True, text=True).stdout.strip()
    is_compiled = NATIVE and str(shell.__file__).endswith(".so")
    print(f"{told}, {'compiled' if is_compiled else 'not compiled'}, {Path(str(shell.__file__)).parent}")
    return 0 if is_compiled and told == f"ottla {VERSION}" else 1


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build").add_argument("--twice", action="store_true")
    commands.add_parser("check").add_argument("files", nargs="+", type=Path)
    commands.add_parser("installed")
    chosen = parser.parse_args(arguments)
    if chosen.command == "installed":
        return installed()
    if chosen.command == "check":
        return check(chosen.files)
    made = build(ROOT / "dist")
    code = check(made)
    if chosen.twice:
        with tempfile.TemporaryDirectory() as again:
            different = differing(made, build(Path(again)))
        print(f"a second build gives other bytes: {', '.join(different)}" if different else "a second build gives the same bytes")
        code = code or bool(different)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
