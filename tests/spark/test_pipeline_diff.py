"""``ottla pipeline diff``: what a restart with a changed file does, without Spark."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from ottla.cli.main import main
from ottla.spark.pipeline.config.file import parse
from ottla.spark.pipeline.file_differences import file_differences

OLD = """bootstrap = "h:1"
[[source]]
name = "events"
topics = ["events"]
watermark = { column = "at", delay = "1 minute" }
decode = { format = "json", schema = "code STRING, n INT, at TIMESTAMP" }
[[source]]
name = "other"
topic = "other"
decode = { format = "json", schema = "code STRING, seen TIMESTAMP" }
[[step]]
name = "good"
sql = "SELECT * FROM events WHERE n > 0"
[[step]]
name = "counts"
sql = "SELECT code, count(*) AS n FROM good GROUP BY code"
[[sink]]
type = "delta"
path = "good"
from = "good"
[[sink]]
type = "delta"
path = "counts"
mode = "merge"
keys = ["code"]
"""


def effects(new: str, old: str = OLD) -> list[tuple[str, str]]:
    return [(one.effect, one.what) for one in file_differences(*(parse(text, Path("p.toml"), {}) for text in (old, new)))]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("n > 0", "n > 0  -- a comment", []),
        ("n > 0", "n > 1", [("new records", "good"), ("new records", "counts")]),
        ("n INT, at", "n BIGINT, at", [("new records", "good"), ("new records", "counts")]),
        ("GROUP BY code", "GROUP BY code, at", [("refused", "counts")]),
        ("count(*) AS n", "sum(n) AS n", [("unsure", "counts")]),
        ('topics = ["events"]', 'topics = ["events", "more"]', [("new records", "good"), ("new records", "counts")]),
        ('topics = ["events"]', 'topics = ["others"]', [("refused", "good"), ("refused", "counts")]),
        ("FROM good GROUP", "FROM good JOIN other USING (code) GROUP", [("refused", "counts"), ("unsure", "counts")]),
        ('path = "good"', 'path = "better"', [("new records", "delta better"), ("stopped", "delta good")]),
        ('mode = "merge"\nkeys = ["code"]', 'mode = "replace"', [("recomputed", "counts"), ("stopped", "delta counts")]),
        ('path = "counts"', 'path = "counts"\nschema = "evolve"', [("new records", "delta counts")]),
        ('bootstrap = "h:1"', 'bootstrap = "h:1"\ncheckpoint = "elsewhere"', [("recomputed", "checkpoint")]),
        (
            '[[sink]]\ntype = "delta"\npath = "good"',
            '[spark]\n"sql.streaming.stateStore.providerClass" = "a.RocksDB"\n[[sink]]\ntype = "delta"\npath = "good"',
            [("refused", "counts"), ("none", "spark")],
        ),
        ('bootstrap = "h:1"', 'bootstrap = "i:1"\ntrigger = "1 minute"', [("unsure", "bootstrap"), ("none", "trigger")]),
    ],
)
def test_each_change_of_a_file_has_an_effect(before: str, after: str, expected: list[tuple[str, str]]) -> None:
    assert before in OLD
    assert effects(OLD.replace(before, after)) == expected


def test_a_deduplication_that_keeps_its_state_for_another_time_is_refused() -> None:
    old = OLD.replace('WHERE n > 0"', "WHERE n > 0\"\ndeduplicate = ['code']")
    assert effects(old.replace("['code']", "['code']\nwithin = 'watermark'"), old) == [("refused", "good"), ("refused", "counts")]
    assert effects(old.replace("['code']", "['n']"), old) == [("refused", "good"), ("refused", "counts")]
    assert ("unsure", "good") in effects(old, OLD)


def test_another_function_of_record_batches_applies_to_new_records(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import pyarrow as pa\n\n\ndef f(b: pa.RecordBatch) -> pa.RecordBatch:\n    return b\n\n\ng = f\n")
    functions = '\nfunction = "f"\ncolumns = "code STRING, n BIGINT"\n[functions]\nmodule = "own.py"\n[[sink]]'
    old = OLD.replace('GROUP BY code"\n[[sink]]', f'GROUP BY code"{functions}', 1)
    texts = (old, old.replace("n BIGINT", "n INT"))
    changes = file_differences(*(parse(text, tmp_path / "p.toml", {}) for text in texts))
    assert [(one.effect, one.what, one.sentence.partition(":")[0]) for one in changes] == [("new records", "counts", "function of counts")]


def test_the_command_exits_with_1_if_a_restart_is_refused(tmp_path: Path) -> None:
    old, new = tmp_path / "old.toml", tmp_path / "new.toml"
    old.write_text(OLD)
    new.write_text(OLD.replace("GROUP BY code", "GROUP BY n"))
    done = CliRunner().invoke(main, ["pipeline", "diff", str(old), str(new)])
    assert (done.exit_code, done.output.splitlines()[1].startswith("refused\tcounts\tstep counts groups by n and grouped by code: ")) == (
        1,
        True,
    )
    new.write_text(OLD)
    done = CliRunner().invoke(main, ["pipeline", "diff", str(old), str(new)])
    assert (done.exit_code, done.output) == (0, "no difference\n")
