"""The load journal, and what a second run does with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.lake.load import load_journal
from ottla.lake.load.column_mapping import ColumnMapping
from ottla.lake.load.inputs import CannotLoad, inputs
from ottla.lake.load.load_journal import JournalEntry, JournalHeader, LoadJournal, Writer
from ottla.lake.load.plan import LoadPlan, compare_columns, digest, plan_files
from ottla.lake.load.reader import ReadOptions

HEAD = JournalHeader("orders", "0a")


def entry(file: str, rows: int = 0) -> JournalEntry:
    return JournalEntry(file, 10, 1, "p", "s", rows=rows, writers=[Writer(7, 0, {"0": 3})], offsets={"0": 5})


def test_the_last_entry_of_a_file_counts(tmp_path: Path) -> None:
    with LoadJournal(tmp_path / "j", HEAD) as journal:
        for rows in (1, 2, 3):
            journal.note(entry("a", rows))
        journal.note(entry("b", 9))
        journal.forget("b")
    with LoadJournal(tmp_path / "j", HEAD) as journal:
        assert journal.entries == {"a": entry("a", 3)}


def test_a_partial_line_after_a_crash_is_removed(tmp_path: Path) -> None:
    with LoadJournal(tmp_path / "j", HEAD) as journal:
        journal.note(entry("a", 1))
    with open(tmp_path / "j", "ab") as file:
        file.write(b'{"file":"a","size":10')
    with LoadJournal(tmp_path / "j", HEAD) as journal:
        assert journal.entries["a"].rows == 1
        journal.note(entry("a", 2))
    with LoadJournal(tmp_path / "j", HEAD) as journal:
        assert journal.entries["a"].rows == 2


def test_a_long_journal_is_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_journal, "STALE_LINES", 3)
    with LoadJournal(tmp_path / "j", HEAD) as journal:
        for rows in range(20):
            journal.note(entry("a", rows))
    with LoadJournal(tmp_path / "j", HEAD) as journal:
        assert (tmp_path / "j").read_bytes().count(b"\n") == 2
        with pytest.raises(CannotLoad, match="is locked"):
            LoadJournal(tmp_path / "j", HEAD)
        journal.note(entry("a", 77))
    with LoadJournal(tmp_path / "j", HEAD) as journal:
        assert journal.entries["a"].rows == 77


def test_a_journal_of_another_topic_is_refused(tmp_path: Path) -> None:
    LoadJournal(tmp_path / "j", HEAD).__exit__()
    for other in (JournalHeader("orders", "0b"), JournalHeader("bills", "0a")):
        with pytest.raises(CannotLoad, match="belongs to"):
            LoadJournal(tmp_path / "j", other)
    (tmp_path / "k").write_text("something else\n")
    with pytest.raises(CannotLoad, match="not a load journal"):
        LoadJournal(tmp_path / "k", HEAD)


# -- what is to be done


def plan(
    tmp_path: Path, journal: LoadJournal, *, shape: ColumnMapping | None = None, changed: str = "fail", again: bool = False
) -> LoadPlan:
    return plan_files(inputs([str(tmp_path / "in")], None), journal, shape or ColumnMapping(), ReadOptions(), changed=changed, again=again)


@pytest.fixture
def journal(tmp_path: Path) -> LoadJournal:
    """A file of three lines, of which two are loaded; another that is completely loaded."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("1\n2\n3\n")
    (tmp_path / "in" / "b.txt").write_text("1\n2\n")
    made = LoadJournal(tmp_path / "j", HEAD)
    first, second = plan(tmp_path, made).files
    assert first.entry is not None and second.entry is not None
    first.entry.rows, second.entry.rows, second.entry.done = 2, 2, True
    made.note(first.entry)
    made.note(second.entry)
    return made


def test_loaded_rows_are_skipped_and_the_rest_is_loaded(tmp_path: Path, journal: LoadJournal) -> None:
    found = plan(tmp_path, journal)
    assert [(Path(one.given.name).name, one.note) for one in found.files] == [("a.txt", "continues behind 2 records")]
    assert [Path(one.name).name for one in found.loaded] == ["b.txt"]
    (tmp_path / "in" / "b.txt").touch()
    assert len(plan(tmp_path, journal).loaded) == 1, "the content is the same"
    assert [one.entry.rows for one in plan(tmp_path, journal, again=True).files if one.entry] == [0, 0]


def test_a_file_that_has_grown_continues(tmp_path: Path, journal: LoadJournal) -> None:
    with open(tmp_path / "in" / "b.txt", "a") as file:
        file.write("3\n")
    note = plan(tmp_path, journal).files[1]
    assert note.note == "grew from 4 to 6 bytes; continues behind 2 records"
    assert note.entry is not None and (note.entry.rows, note.entry.size, note.entry.done) == (2, 6, False)


def test_a_changed_file_is_refused_or_handled_as_requested(tmp_path: Path, journal: LoadJournal) -> None:
    (tmp_path / "in" / "b.txt").write_text("other")
    with pytest.raises(CannotLoad, match=r"b\.txt has changed since 2 of its records .*4 bytes then, 5 now.*--changed continue"):
        plan(tmp_path, journal)
    rows = {
        how: [one.entry.rows for one in plan(tmp_path, journal, changed=how).files if one.entry] for how in ("again", "continue", "skip")
    }
    assert rows == {"again": [2, 0], "continue": [2, 2], "skip": [2]}


def test_for_a_file_changed_after_a_crash_the_log_tail_skips_nothing(tmp_path: Path, journal: LoadJournal) -> None:
    dead = journal.entries[str(tmp_path / "in" / "a.txt")]
    dead.writers, dead.offsets = [Writer(7, 0, {})], {"0": 1}
    (tmp_path / "in" / "a.txt").write_text("1\n2\n3 other\n4\n")
    (found,) = plan(tmp_path, journal, changed="continue").files
    assert found.entry is not None and (found.entry.rows, found.entry.writers) == (2, [])
    assert found.note == "has changed; continues behind 2 records; some of the next records may be duplicates"


def test_a_last_line_without_line_end_does_not_count_as_an_unchanged_prefix(tmp_path: Path, journal: LoadJournal) -> None:
    path = tmp_path / "in" / "c.txt"
    path.write_text("1\n2")
    (entry,) = [one.entry for one in plan(tmp_path, journal).files if one.given.name == str(path)]
    assert entry is not None
    entry.rows, entry.done = 2, True
    journal.note(entry)
    path.write_text("1\n222\n3\n")
    with pytest.raises(CannotLoad, match=r"c\.txt has changed"):
        plan(tmp_path, journal)


def test_a_partly_loaded_file_does_not_continue_with_other_options(tmp_path: Path, journal: LoadJournal) -> None:
    with pytest.raises(CannotLoad, match=r"a\.txt was started with other options .* 2 of its records are written"):
        plan(tmp_path, journal, shape=ColumnMapping(value="line"))
    assert digest(ColumnMapping(), ReadOptions(), "text") != digest(ColumnMapping(), ReadOptions(nulls=("NA",)), "text")


def test_files_with_different_columns_are_refused_before_sending(tmp_path: Path) -> None:
    files = {"a.csv": "id,zip\n1,x\n", "b.csv": "id,zip\n2,\n", "c.csv": "id,zip\n3,4\n", "d.csv": "id\n4\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    def check(*names: str, mixed: bool = False) -> None:
        sources = inputs([str(tmp_path / name) for name in names], None)
        compare_columns(
            plan_files(sources, None, ColumnMapping(), ReadOptions(), changed="fail", again=False).files,
            ColumnMapping(),
            ReadOptions(),
            mixed=mixed,
        )

    check("a.csv", "b.csv")
    check("a.csv", "c.csv", "d.csv", mixed=True)
    with pytest.raises(CannotLoad, match=r"the columns of .*c\.csv and .*a\.csv differ: column zip is number and not text; .*--mixed"):
        check("a.csv", "b.csv", "c.csv")
    with pytest.raises(CannotLoad, match="it has no column zip"):
        check("a.csv", "d.csv")
    with pytest.raises(CannotLoad, match="it has a column zip more"):
        check("d.csv", "a.csv")
