"""docs/clients.md: each example runs, prints the documented output, and passes a type checker."""

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
#: Code, and its output if the page shows it.
EXAMPLES = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", TEXT, re.DOTALL)


@pytest.mark.server
def test_the_examples_print_the_documented_output(ottla_server: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    """In their order: some examples read what earlier ones wrote."""
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


#: Code that must not pass the type checker, and the result type of a plural call.
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
    """Messages of mypy --strict about the examples and wrong.py, by file and line."""
    place = tmp_path_factory.mktemp("programs")
    for number, (code, _) in enumerate(EXAMPLES):
        (place / f"example_{number}.py").write_text(code)
    (place / "wrong.py").write_text(WRONG)
    programs = sorted(map(str, place.glob("*.py")))
    # Same settings and cache as `make lint`, so that mypy does not check the package again.
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml"), *programs]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    found = re.findall(r"([^/\s]+\.py):(\d+): (.*)", done.stdout)
    return {(file, int(line)): message for file, line, message in found}


def test_the_examples_pass_the_type_checker(findings: dict[tuple[str, int], str]) -> None:
    assert {place: message for place, message in findings.items() if place[0] != "wrong.py"} == {}


def test_wrong_uses_fail_the_type_checker(findings: dict[tuple[str, int], str]) -> None:
    message = {line: text for (file, line), text in findings.items() if file == "wrong.py"}
    assert message.keys() == {4, 5, 6, 7}
    assert 'Item "KafkaError" of "CreatedTopic | KafkaError" has no attribute' in message[4]
    assert "ottla.client.admin.results.TopicDescription]" in message[7]


def test_the_installed_package_is_marked_as_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    package = Distribution()
    package.parse_config_files(["pyproject.toml"])
    # Only the project settings count, not files of an earlier build.
    package.include_package_data = False
    build = package.get_command_obj("build_py")
    build.ensure_finalized()
    files = {Path(folder, name) for _, folder, _, names in build.data_files for name in names}
    assert Path("src/ottla/py.typed") in files
    # Compiled modules have stub files.
    assert files >= set(Path("src/ottla").rglob("*.pyi"))
