"""docs/clients.md: each example is a program that runs and prints what the page says, and that a type checker finds nothing wrong with."""

from __future__ import annotations

import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from setuptools import Distribution

from ottla import Admin, NewTopic
from serving import ELSEWHERE, Serving, needs_its_own

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "clients.md").read_text()
#: Code, and what it prints, if the page tells.
EXAMPLES = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", TEXT, re.DOTALL)


@pytest.mark.server
def test_the_examples_print_what_the_page_says(ottla_server: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    """All in their order, as those that read meet what others wrote."""
    if ELSEWHERE:
        needs_its_own("which knows of a change as soon as it is answered")
    names = {word: f"{word}-{uuid.uuid4().hex[:12]}" for word in ("orders", "payments", "billing")}
    with Admin(bootstrap_servers=ottla_server.bootstrap) as admin:
        admin.create_topic(NewTopic(names["orders"]))
    assert len(EXAMPLES) > 8
    for code, expected in EXAMPLES:
        program, printed = code.replace("localhost:9092", ottla_server.bootstrap), expected
        for word, name in names.items():
            program, printed = program.replace(f'"{word}"', f'"{name}"'), re.sub(rf"\b{word}\b", name, printed)
        exec(compile(program, "docs/clients.md", "exec"), {"__name__": "__main__"})
        assert capsys.readouterr().out == printed, code


#: What no user should get away with, and what a plural call is known to give.
WRONG = """\
import ottla
admin = ottla.Admin()
outcome = admin.create_topics([ottla.NewTopic('t')])['t']
outcome.num_partitions
admin.describe_topic(3)
admin.list_topics(timeout='1')
reveal_type(ottla.unwrap(admin.describe_topics(['t'])))
"""


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], str]:
    """What mypy --strict says of the examples and of wrong.py, by file and line."""
    place = tmp_path_factory.mktemp("programs")
    for number, (code, _) in enumerate(EXAMPLES):
        (place / f"example_{number}.py").write_text(code)
    (place / "wrong.py").write_text(WRONG)
    programs = sorted(map(str, place.glob("*.py")))
    # The settings, and so the cache, are those of `make lint`: what it has looked at is not looked at again.
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml"), *programs]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    found = re.findall(r"([^/\s]+\.py):(\d+): (.*)", done.stdout)
    return {(file, int(line)): said for file, line, said in found}


def test_the_examples_are_well_typed(findings: dict[tuple[str, int], str]) -> None:
    assert {place: said for place, said in findings.items() if place[0] != "wrong.py"} == {}


def test_wrong_uses_are_found_by_a_type_checker(findings: dict[tuple[str, int], str]) -> None:
    said = {line: text for (file, line), text in findings.items() if file == "wrong.py"}
    assert said.keys() == {4, 5, 6, 7}
    assert 'Item "KafkaError" of "CreatedTopic | KafkaError" has no attribute' in said[4]
    assert "ottla.client.admin.results.TopicDescription]" in said[7]


def test_the_package_that_is_installed_says_that_it_is_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    package = Distribution()
    package.parse_config_files(["pyproject.toml"])
    # What the project names is what counts, not what a build before has left behind.
    package.include_package_data = False
    build = package.get_command_obj("build_py")
    build.ensure_finalized()
    files = {Path(folder, name) for _, folder, _, names in build.data_files for name in names}
    assert Path("src/ottla/py.typed") in files
    # What is compiled tells its types in files of its own.
    assert files >= set(Path("src/ottla").rglob("*.pyi"))
