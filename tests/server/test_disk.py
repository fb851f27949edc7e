"""The ``Disk`` interface: the real and the simulated implementation, and specifics of the real one."""

import os
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from errno import EFBIG
from pathlib import Path

import pytest

from ottla.base.ports import Disk
from ottla.server.disk import RealDisk, RealFile
from ottla.sim.disk import SimDisk


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return RealDisk(tmp_path / "data", descriptors_max=8) if request.param == "real" else SimDisk()


def write(disk: Disk, path: str, data: bytes) -> None:
    disk.open(path, create=True).append(data)


# The promise.


def test_a_file_that_is_not_there_is_not_made_by_accident(disk: Disk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open("missing")
    assert not disk.exists("missing") and disk.listdir() == []


def test_append_returns_its_base_offset(disk: Disk) -> None:
    file = disk.open("a", create=True)
    assert [file.append(b"one"), file.append(b"two", bytearray(b"three"), memoryview(b"4")), file.append(b"")] == [0, 3, 12]
    assert file.size == disk.size("a") == 12
    assert file.read(0, 100) == disk.read_file("a") == b"onetwothree4"


def test_many_small_chunks_are_one_append(disk: Disk) -> None:
    file = disk.open("a", create=True)
    file.append(*[b"%04d" % number for number in range(2500)])
    assert file.read(9_996, 10) == b"2499" and file.size == 10_000


def test_reads_end_at_the_end(disk: Disk) -> None:
    file = disk.open("a", create=True)
    file.append(b"0123456789")
    assert (file.read(4, 3), file.read(8, 5), file.read(10, 1), file.read(99, 1)) == (b"456", b"89", b"", b"")


def test_a_file_opened_again_goes_on_where_it_ended(disk: Disk) -> None:
    write(disk, "a", b"first")
    disk.open("a").close()
    file = disk.open("a")
    assert file.append(b"second") == 5 and disk.read_file("a") == b"firstsecond"


def test_truncation_takes_the_end_off_or_fills_with_zeros(disk: Disk) -> None:
    file = disk.open("a", create=True)
    file.append(b"0123456789")
    file.truncate(4)
    assert (file.size, file.append(b"x")) == (4, 4)
    file.truncate(8)
    assert disk.read_file("a") == b"0123x\0\0\0"


def test_a_renamed_file_keeps_its_content_and_its_holders(disk: Disk) -> None:
    file = disk.open("a", create=True)
    file.append(b"content")
    disk.rename("a", "b")
    file.append(b"!")
    assert file.path == "b" and file.read(0, 99) == disk.read_file("b") == b"content!"
    assert not disk.exists("a") and disk.open("b").size == 8


def test_a_rename_replaces_what_was_there(disk: Disk) -> None:
    write(disk, "a", b"new")
    held = disk.open("b", create=True)
    held.append(b"old")
    disk.rename("a", "b")
    assert disk.read_file("b") == disk.open("b").read(0, 9) == b"new" and disk.listdir() == ["b"]


def test_renaming_what_is_not_there_is_an_error(disk: Disk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.rename("a", "b")


def test_files_of_a_renamed_directory_follow_it(disk: Disk) -> None:
    disk.mkdir("d")
    file = disk.open("d/a", create=True)
    file.append(b"1")
    disk.rename("d", "e")
    assert file.path == "e/a" and file.append(b"2") == 1 and disk.read_file("e/a") == b"12"
    disk.mkdir("d")
    write(disk, "d/a", b"another")
    assert file.read(0, 9) == b"12" and disk.listdir("d") == disk.listdir("e") == ["a"]


def test_an_unlinked_file_can_be_read_while_it_is_open(disk: Disk) -> None:
    file = disk.open("a", create=True)
    file.append(b"content")
    disk.unlink("a")
    assert file.read(0, 7) == b"content" and not disk.exists("a")
    assert disk.open("a", create=True).size == 0


def test_unlink_of_a_missing_file_and_mkdir_of_an_existing_directory_succeed(disk: Disk) -> None:
    disk.unlink("a")
    disk.unlink("no/such/directory")
    disk.mkdir("d")
    disk.mkdir("d")
    disk.remove_tree("nothing")
    assert "d" in disk.listdir() and disk.listdir("d") == []


def test_a_tree_goes_with_all_in_it(disk: Disk) -> None:
    disk.mkdir("d")
    write(disk, "d/a", b"1")
    write(disk, "d/b", b"2")
    disk.remove_tree("d")
    assert not disk.exists("d") and disk.listdir() == []
    write(disk, "single", b"1")
    disk.remove_tree("single")
    assert disk.listdir() == []


def test_names_are_listed_in_order(disk: Disk) -> None:
    for name in ("b", "a", "C"):
        write(disk, name, b"")
    disk.mkdir("aa")
    assert disk.listdir() == ["C", "a", "aa", "b"]
    with pytest.raises(FileNotFoundError):
        disk.listdir("missing")
    with pytest.raises(NotADirectoryError):
        disk.listdir("a")


def test_a_replaced_file_has_the_new_content_and_leaves_nothing_beside_it(disk: Disk) -> None:
    disk.mkdir("d")
    disk.replace_file("d/a", b"one")
    disk.replace_file("d/a", b"two")
    assert disk.read_file("d/a") == disk.open("d/a").read(0, 9) == b"two" and disk.listdir("d") == ["a"]


def test_sync_of_files_and_directories_succeeds_unless_they_are_missing(disk: Disk) -> None:
    disk.mkdir("d")
    file = disk.open("d/a", create=True)
    file.append(b"1")
    file.sync()
    disk.sync_dir("d")
    disk.sync_dir()
    with pytest.raises(FileNotFoundError):
        disk.sync_dir("missing")


def test_there_is_some_room(disk: Disk) -> None:
    assert disk.free_bytes() > 1000
    write(disk, "a", b"1")
    assert disk.mtime_ms("a") >= 0 and disk.root


def test_an_append_that_fails_half_way_leaves_the_file_as_it_was(disk: Disk) -> None:
    file = disk.open("a", create=True)
    file.append(b"before")
    with limited(disk, 5000), pytest.raises(OSError, match=r"."):
        file.append(b"x" * 3000, b"y" * 3000)
    assert file.size == disk.size("a") == 6
    assert file.append(b"after") == 6 and disk.read_file("a") == b"beforeafter"


class limited:
    """No file grows above the size: of the process for the real disk (EFBIG in the midst of a write), of the disk for the other."""

    def __init__(self, disk: Disk, size: int) -> None:
        self._disk, self._size = disk, size

    def __enter__(self) -> None:
        if isinstance(self._disk, SimDisk):
            self._before = self._disk.capacity_bytes
            self._disk.capacity_bytes = self._size
        else:
            self._limits = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (self._size, self._limits[1]))

    def __exit__(self, *_: object) -> None:
        if isinstance(self._disk, SimDisk):
            self._disk.capacity_bytes = self._before
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, self._limits)


# The real one.


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealDisk]:
    yield RealDisk(tmp_path / "data", descriptors_max=10)


def descriptors(under: str) -> int:
    """Open ones of this process that lead under a directory."""
    found = 0
    for entry in list(Path("/proc/self/fd").iterdir()):
        with suppress(FileNotFoundError):  # The one that lists them.
            found += str(entry.readlink()).startswith(under)
    return found


def test_descriptors_stay_below_the_limit_and_every_file_stays_usable(real: RealDisk) -> None:
    files = [real.open(f"f{number}", create=True) for number in range(50)]
    for round_ in range(3):
        for number, file in enumerate(files):
            assert file.append(b"%02d" % number) == 2 * round_
            assert descriptors(real.root) <= 10
    assert all(file.read(0, 9) == b"%02d" % number * 3 for number, file in enumerate(files))


def test_files_in_use_keep_their_descriptors(real: RealDisk) -> None:
    busy = real.open("busy", create=True)
    busy.append(b"1")
    number = busy.fileno()
    for other in range(30):
        real.open(f"f{other}", create=True).append(b"1")
        busy.append(b"1")
    assert busy.fileno() == number


def test_a_renamed_file_that_lost_its_descriptor_is_found_again(real: RealDisk) -> None:
    real.mkdir("d")
    file = real.open("d/a", create=True)
    file.append(b"1")
    real.rename("d/a", "d/b")
    real.rename("d", "e")
    others = [real.open(f"f{number}", create=True) for number in range(30)]
    assert file.read(0, 1) == b"1" and others


def test_descriptor_of_an_unreferenced_file_is_closed(real: RealDisk) -> None:
    for number in range(5):
        real.open(f"f{number}", create=True).append(b"1")
    assert descriptors(real.root) == 0
    file = real.open("f0")
    assert descriptors(real.root) == 1
    file.close()
    assert descriptors(real.root) == 0 and file.read(0, 1) == b"1"


def test_the_descriptor_can_be_handed_to_sendfile(real: RealDisk) -> None:
    file = real.open("a", create=True)
    file.append(b"0123456789")
    reader, writer = socket.socketpair()
    with reader, writer:
        assert os.sendfile(writer.fileno(), file.fileno(), 3, 4) == 4
        assert reader.recv(10) == b"3456"


def test_syncs_in_threads_go_along_with_appends_and_evictions(real: RealDisk) -> None:
    files = [real.open(f"f{number}", create=True) for number in range(40)]
    failures: list[BaseException] = []

    def sync() -> None:
        try:
            for _ in range(3):
                for file in files:
                    file.sync()
                    assert file.read(0, 1) in (b"", b"x")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=sync) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for file in files:
            file.append(b"x")
    assert not failures and all(file.size == len(real.read_file(file.path)) for file in files)
    assert descriptors(real.root) <= 10 + len(threads)


def test_a_thread_that_is_not_the_owner_closes_no_descriptor_of_another_file(real: RealDisk) -> None:
    held = [real.open(f"f{number}", create=True) for number in range(10)]
    kept = set(real.opened)
    made: list[RealFile] = []

    def open_another() -> None:
        file = real.open("other", create=True)
        file.append(b"0123456789")
        file.truncate(4)
        file.drop_cache()
        file.sync()
        made.append(file)

    thread = threading.Thread(target=open_another)
    thread.start()
    thread.join()
    assert set(real.opened) == kept == set(map(id, held)) and descriptors(real.root) == 10
    (other,) = made
    assert other.size == 4 and other.read(0, 9) == b"0123" and other.append(b"4") == 4


def test_a_path_has_one_file(real: RealDisk) -> None:
    held = real.open("a", create=True)
    held.append(b"1")
    assert real.open("a") is held and repr(held) == "RealFile(a, 1)"


def test_the_size_limit_of_the_process_is_what_the_contract_test_ran_into(real: RealDisk) -> None:
    file = real.open("a", create=True)
    with limited(real, 10), pytest.raises(OSError) as caught:
        file.append(b"x" * 11)
    assert caught.value.errno == EFBIG and file.size == 0


def test_the_root_is_created_and_its_space_measured(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path / "deep" / "er")
    assert (tmp_path / "deep" / "er").is_dir() and 0 < disk.free_bytes() <= disk.total_bytes()
