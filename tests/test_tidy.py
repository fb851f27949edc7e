"""The tree keeps its own rules: who may import whom, what pure parts may touch, how long a file is, what no file says.

``LAYERS`` is the picture of the layers; whoever wants to change it changes the design. Reasons stand beside every exception, and an
exception that is no longer needed fails the test, so that the lists only shrink.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from ottla.base.version import VERSION
from ottla.broker.apis import HANDLERS
from ottla.broker.metadata.configs import UNITS_MS, BrokerOptions
from ottla.client.options import AdminOptions, ConsumerOptions, ProducerOptions
from ottla.log.options import TopicOptions

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "ottla"

#: What each package may import of the others. Modules that stand beside the packages (``ottla/aio.py``) are faces of the client.
LAYERS: dict[str, set[str]] = {
    "base": set(),
    "wire": {"base"},
    "records": {"base"},
    "codecs": {"records"},
    "store": {"base"},
    "log": {"base", "records"},
    "net": {"base", "wire"},
    "broker": {"base", "wire", "records", "log", "store"},
    "client": {"base", "wire", "records", "codecs", "net"},
    "server": {"base", "wire", "records", "log", "net", "broker", "store", "client"},
    "sim": {"base", "wire", "records", "codecs", "log", "net", "broker", "store", "server", "client"},
    "lake": {"base", "wire", "records", "codecs", "net", "client"},
    "spark": {"base", "wire", "records", "codecs", "net", "client", "lake"},
    "console": {"base", "wire", "records", "codecs", "net", "client"},
    "registry": {"base", "wire", "records", "codecs", "net", "client"},
    "cli": {"base", "wire", "records", "codecs", "log", "net", "client", "lake", "spark", "console", "registry", "server", "sim", "store"},
    "testing": {"base", "wire", "records", "codecs", "net", "client", "registry", "server", "sim", "store"},
    "demo": {"base", "wire", "records", "codecs", "net", "client", "server", "spark", "cli"},
}
#: Finer than packages: what of a package is open to whom.
ONLY: dict[tuple[str, str], str] = {
    # Paths and contents of store nodes, and the operations on them, are pure.
    ("broker", "store"): "ottla.store.layout",
    # The one client of schema registries, for brokers that validate the schemas of records.
    ("server", "client"): "ottla.client.schema_registry",
}
#: Packages that only some modules of cli import, so that the other commands start fast and do not depend on them.
DOORS = {
    "server": {
        "cluster/local",
        "cluster/status",
        "doctor/local",
        "import_/command",
        "log/dump",
        "serve/command",
        "serve/initial_user",
        "store/commands",
        "user/commands",
        "zookeeper/command",
    },
    "store": {"doctor/local", "store/commands"},
    "sim": {"sim/commands"},
    "spark": {"pipeline/backfill", "pipeline/cases", "pipeline/commands", "pipeline/diff", "pipeline/plan", "zookeeper/command"},
    "log": {"common/complete", "doctor/local", "log/dump", "log/index_check", "log/scrub"},
}

PURE = ("base", "wire", "records", "log", "broker")
IMPURE_MODULES = {
    "asyncio",
    "socket",
    "os",
    "time",
    "random",
    "threading",
    "logging",
    "datetime",
    "subprocess",
    "secrets",
    "uuid",
    "pathlib",
}
#: (file, module) -> why.
IMPURE_ALLOWED = {
    ("log/checkpoints.py", "datetime"): "meta.properties begins with a printed date; the time comes in as an argument",
}

LENGTH_MAX = 800
TABLES = ("wire/messages/", "wire/errors.py", "broker/metadata/configs.py", "log/options.py", "client/options.py", "base/options.py")
#: file -> why it may be longer than that.
LONGER: dict[str, str] = {}
FUNCTION_LINES_MAX = 60
#: file: function -> why it may be longer than that.
LONGER_FUNCTIONS = {
    "records/_pure_read.py: _walk": "one loop over the bytes of a record, without a call per field; the native twin is the readable one"
}
#: file -> why it may catch everything without raising it again.
CATCH_ALL = {
    "cli/common/profiles.py": "a shell that completes offers nothing when something fails, and says nothing",
    "server/flusher.py": "an error in its thread is told on the loop, and ends the process",
    "broker/isolation.py": "an exception costs the request that caused it, or the process when it interrupted a change",
    "broker/replica/leader.py": "as broker/isolation.py, for an append",
    "broker/delayed.py": "as broker/isolation.py, for requests that wait",
    "server/shell.py": "a failure of the broker is recorded before the process ends, and one of a request costs that request alone",
    "net/server_connection.py": "whatever a connection does, the others go on",
    "net/authenticator.py": "an error of a mechanism fails one authentication, and its text may contain a secret",
    "net/sasl/logins.py": "a user's token provider may raise anything, and its text may contain a secret",
    "client/producer/batches.py": "what a user's callback raises is logged: the sender has others to serve",
    "client/interceptors.py": "what a user's interceptor raises is logged: it keeps nothing from being sent",
    "client/process/process.py": "what a user's function raises is raised again after the transaction was aborted",
    "client/sync/process.py": "as client/process/process.py, by way of the loop",
    "client/consumer/record.py": "whatever a user's deserializer raises is raised again with the record's place, by the way that knows it",
    "client/sync/consumer.py": "what a listener raises is raised again in the poll that waits for it, by way of the loop",
    "spark/pipeline/functions.py": "whatever a user's module raises when it is imported is told with the module's line",
    "sim/memory_environment.py": "what runs at once fails in its future, as it would in a thread",
    "sim/sweep.py": "whatever a simulated world raises is a finding, told with its seed",
    "sim/replay.py": "whatever a replayed broker raises is what was looked for",
}
#: Kafka's words are exempt nowhere: these say nothing about what a class is.
EMPTY_WORDS = ("Manager", "Helper", "Util", "Utils", "Impl")

SKIPPED = {".git", ".venv", "build", "dist", "__pycache__", "results", "artifacts", "spark-warehouse", "metastore_db"}
TEXT = {".py", ".pyi", ".pyx", ".pxi", ".pxd", ".md", ".toml", ".sh", ".cfg", ".txt", ".yml", ".yaml", ".json", ".html", ".css", ".js", ""}


@cache
def modules() -> dict[str, ast.Module]:
    """Syntax trees of the package, by path below ``src/ottla``."""
    return {path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}


def package_of(path: str) -> str | None:
    """The package a module is in; None for those beside the packages."""
    return path.split("/")[0] if "/" in path else None


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, full name) of everything imported, at whatever depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"line {node.lineno}: imports are written out in full"
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


@cache
def files() -> dict[str, str]:
    """Text of everything in the tree that people wrote, by path."""
    found = {}
    for path in sorted(ROOT.rglob("*")):
        relative = path.relative_to(ROOT)
        if SKIPPED.intersection(relative.parts) or any(part.startswith(".") and part != ".ci" for part in relative.parts[:-1]):
            continue
        if path.is_file() and path.suffix in TEXT:
            try:
                found[relative.as_posix()] = path.read_text()
            except UnicodeDecodeError:
                continue
    return found


def test_every_package_has_its_place_in_the_layers() -> None:
    found = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert found <= set(LAYERS), "say in LAYERS what the new package may import"


def test_no_package_imports_one_to_its_right() -> None:
    wrong = []
    for path, tree in modules().items():
        package = package_of(path)
        if package is None or package not in LAYERS:
            continue
        for line, name in imports(tree):
            parts = name.split(".")
            if parts[0] != "ottla" or len(parts) < 2 or parts[1] == package or not (SOURCE / parts[1]).is_dir():
                continue
            if parts[1] not in LAYERS[package]:
                wrong.append(f"{path}:{line} imports {name}")
            only = ONLY.get((package, parts[1]))
            if only is not None and not name.startswith(only):
                wrong.append(f"{path}:{line} imports {name}; only {only} is open to {package}")
            doors = DOORS.get(parts[1]) if package == "cli" else None
            if doors is not None and path.removeprefix("cli/").removesuffix(".py") not in doors:
                wrong.append(f"{path}:{line} imports {name}; in cli only {', '.join(sorted(doors))} may")
    assert not wrong, "\n".join(wrong)


def test_no_module_imports_itself_through_others() -> None:
    """Imports for type checking and inside of functions count too."""
    names = {"ottla." + path.removesuffix(".py").replace("/", "."): path for path in modules()}
    known = {name.removesuffix(".__init__"): path for name, path in names.items()}
    known |= {f"ottla.{path.parent.name}.{path.stem}": "" for path in SOURCE.rglob("*.pyx")}
    graph = {
        module: {found if found in known else found.rpartition(".")[0] for _, found in imports(modules()[path])} & known.keys() - {module}
        for module, path in known.items()
        if path
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"these modules import each other: {' <- '.join(error.args[1])}")


def test_the_layers_have_no_circle() -> None:
    settled: set[str] = set()
    while rest := set(LAYERS) - settled:
        free = {package for package in rest if LAYERS[package] <= settled}
        assert free, f"{sorted(rest)} import each other"
        settled |= free


def test_pure_parts_touch_no_clock_socket_thread_file_or_chance() -> None:
    wrong, used = [], set()
    for path, tree in modules().items():
        if package_of(path) not in PURE:
            continue
        for line, name in imports(tree):
            module = name.split(".")[0]
            if module not in IMPURE_MODULES or name == "random.Random":
                continue
            if (path, module) in IMPURE_ALLOWED:
                used.add((path, module))
            else:
                wrong.append(f"{path}:{line} imports {name}")
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        named = [(call.lineno, call.func.id) for call in calls if isinstance(call.func, ast.Name)]
        wrong += [f"{path}:{line} calls {name}()" for line, name in named if name in ("open", "print", "input", "Random")]
    assert not wrong, "\n".join(wrong)
    assert used == set(IMPURE_ALLOWED), f"no longer needed: {set(IMPURE_ALLOWED) - used}"


def test_every_module_has_a_docstring() -> None:
    silent = [path for path, tree in modules().items() if not ast.get_docstring(tree)]
    for folder in ("tests", "bench", "chaos", "tools", "examples"):
        silent += [
            str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*.py") if not re.match(r'(?:#.*\n|\s)*r?"""', path.read_text())
        ]
    assert not silent, f"modules without a docstring: {silent}"


def test_no_file_is_too_long_to_read() -> None:
    lengths = {path: len((SOURCE / path).read_text().splitlines()) for path in modules() if not path.startswith(TABLES)}
    long = {path for path, lines in lengths.items() if lines > LENGTH_MAX}
    assert long <= set(LONGER), f"more than {LENGTH_MAX} lines: {sorted(long - set(LONGER))}"


def test_nothing_is_caught_wholesale_but_where_that_is_the_point() -> None:
    caught = set()
    for path, tree in modules().items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.ExceptHandler):
                continue
            names = {part.id for part in ast.walk(node.type) if isinstance(part, ast.Name)} if node.type else {"BaseException"}
            raised_again = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
            if names & {"Exception", "BaseException"} and not raised_again:
                caught.add(path)
    assert caught == set(CATCH_ALL), f"too many, or no longer needed: {sorted(caught ^ set(CATCH_ALL))}"


def test_classes_have_meaningful_names() -> None:
    empty = [
        f"{path}: {node.name}"
        for path, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name.endswith(EMPTY_WORDS)
    ]
    assert not empty


def test_functions_fit_a_screen() -> None:
    long = {
        f"{path}: {node.name}"
        for path, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= FUNCTION_LINES_MAX
    }
    assert long == set(LONGER_FUNCTIONS), f"too long, or no longer so: {sorted(long ^ set(LONGER_FUNCTIONS))}"


def test_every_setting_is_read_somewhere() -> None:
    read = {
        node.attr
        for path, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    for table in (BrokerOptions, TopicOptions, ProducerOptions, ConsumerOptions, AdminOptions):
        idle = [name for name, spec in table.SPECS.items() if spec.attribute not in read and name not in UNITS_MS and not spec.fixed]
        assert not idle, f"settings of {table.__name__} without effect: {idle}"


def test_each_api_file_carries_the_key_of_its_api() -> None:
    for key, served in HANDLERS.items():
        assert served.run.__module__ == f"ottla.broker.apis.k{key:02}_{served.name}"


@pytest.mark.parametrize(
    ("what", "pattern"),
    [
        ("a note to do it later", r"\b(TODO|FIXME|HACK)\b"),
        ("a path of one machine", r"(?<![\w.])/(work|root|home/\w+|Users)/"),
        (
            "the host of a package registry",
            "|".join(map(re.escape, ("pypi" + ".org", "python" + "hosted.org", "npm" + "js.", "repo1." + "maven", "crates" + ".io"))),
        ),
    ],
)
def test_no_file_holds(what: str, pattern: str) -> None:
    here = Path(__file__).relative_to(ROOT).as_posix()
    found = [
        f"{path}:{number}: {line.strip()[:100]}"
        for path, text in files().items()
        if path != here and re.search(pattern, text, re.MULTILINE)
        for number, line in enumerate(text.splitlines(), 1)
        if re.search(pattern, line)
    ]
    assert not found, f"{what}:\n" + "\n".join(found)


# docs/glossary.md


def test_no_source_file_has_a_retired_name() -> None:
    _, retired = (ROOT / "docs" / "glossary.md").read_text().split("## Retired words")
    names = {name for row in re.findall(r"^\| (.*?) \|", retired, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert {"Purgatory", "agenda"} < names, "the table of retired words was not understood"
    pattern = re.compile(rf"\b({'|'.join(sorted(names))})\b")
    found = [
        f"{path}:{number}: {name}, see docs/glossary.md"
        for path, text in files().items()
        if path.endswith((".py", ".pyx", ".pxi"))
        if path != Path(__file__).relative_to(ROOT).as_posix()
        for number, line in enumerate(text.splitlines(), 1)
        for name in pattern.findall(line)
    ]
    assert not found, "\n".join(found)


# docs/file-map.md


def mapped() -> tuple[set[str], set[str]]:
    """Packages and modules that the file map names: ``### `base/``` heads a package, ``| `ids.py` |`` a module in it."""
    packages, named, package = set(), set(), ""
    for line in (ROOT / "docs" / "file-map.md").read_text().splitlines():
        if heading := re.match(r"### `([\w/]+)/`", line):
            package = heading[1]
            packages.add(package)
        elif module := re.match(r"\| `([\w/]+\.py)` \|", line):
            named.add(f"{package}/{module[1]}")
    return packages, named


def test_the_file_map_names_exactly_the_packages_there_are() -> None:
    packages, _ = mapped()
    assert packages == {path.parent.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("__init__.py")}


def test_every_module_in_the_file_map_exists() -> None:
    _, named = mapped()
    assert named and not [path for path in named if not (ROOT / "src" / path).is_file()]


def test_every_module_is_in_the_file_map() -> None:
    _, named = mapped()
    there = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py") if path.name != "__init__.py"}
    assert named == there, f"run make docs; the map differs in {sorted(named ^ there)}"


@pytest.mark.parametrize("tool", ["reference.py", "file_map.py"])
def test_the_generated_pages_are_up_to_date(tool: str) -> None:
    done = subprocess.run([sys.executable, str(ROOT / "tools" / tool), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"run make docs: {done.stdout}{done.stderr}"


# docs/decisions


def test_every_dependency_has_its_line_of_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    names = {re.split(r"[\[<>=;,]", line)[0].strip() for line in wanted} - {"ottla"}
    reasons = (ROOT / "docs" / "decisions" / "0001-dependencies.md").read_text()
    missing = [name for name in sorted(names) if not re.search(rf"\b{re.escape(name)}\b", reasons)]
    assert not missing, f"docs/decisions/0001-dependencies.md does not speak of {missing}"


def test_the_version_has_one_place_and_an_entry_in_the_changelog() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "ottla.base.version.VERSION"}
    elsewhere = [
        path.relative_to(ROOT).as_posix()
        for path in SOURCE.rglob("*.py")
        if f'"{VERSION}"' in path.read_text() and path.name not in ("version.py", "__init__.py")
    ]
    assert not elsewhere
    assert f"\n## {VERSION}\n" in (ROOT / "CHANGELOG.md").read_text() or any((ROOT / "changelog.d").glob("*.md"))


# docs/semantics.md


def test_each_behaviour_that_clients_rely_on_has_a_test() -> None:
    """The docstring of a test that begins with ``Line`` or ``Lines`` and numbers speaks of lines of the page."""
    promised = {int(line) for line in re.findall(r"^\| (\d+) \|", (ROOT / "docs" / "semantics.md").read_text(), re.MULTILINE)}
    tested: set[int] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if re.search(r'"""Lines? \d', text) else ():
            said = ast.get_docstring(node) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None
            if said and (found := re.match(r"Lines? (\d+(?:(?:, | and )\d+)*)", said)):
                tested |= {int(number) for number in re.findall(r"\d+", found[1])}
    assert tested == promised, f"without a test: {sorted(promised - tested)}; unknown: {sorted(tested - promised)}"


# Links


def test_every_link_between_pages_leads_somewhere() -> None:
    broken = [
        f"{path}: {target}"
        for path, text in files().items()
        if path.endswith(".md")
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
        if "://" not in target and not ((ROOT / path).parent / target).exists()
    ]
    assert not broken, f"links to nowhere: {broken}"


def test_no_two_files_of_tests_have_one_name() -> None:
    """Their directories are no packages, so a test of one would be taken for the other's."""
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name not in ("conftest.py", "__init__.py")]
    assert sorted(names) == sorted(set(names))


def test_every_module_that_is_compiled_exists() -> None:
    lists = re.findall(r'^(?:HOT|WARM) = """(.*?)"""', (ROOT / "setup.py").read_text(), re.DOTALL | re.MULTILINE)
    names = " ".join(lists).split()
    assert len(lists) == 2 and sorted(names) == sorted(set(names)), "each module is in one of the two lists"
    assert [name for name in names if not (SOURCE / f"{name}.py").is_file()] == []


def test_no_compiled_module_hides_the_source_it_was_made_from() -> None:
    compiled = [path for path in SOURCE.rglob("*.so") if path.with_name(path.name.split(".")[0] + ".py").exists()]
    assert compiled == [], "only an installed package has these; remove them from the checkout"
