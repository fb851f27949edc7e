"""Disk space that is reserved for the store."""

import os
from pathlib import Path

import pytest

from ottla.store.embedded.ballast import LEAST_BYTES, Ballast


def test_it_takes_real_space_and_gives_it_back(tmp_path: Path) -> None:
    ballast = Ballast(tmp_path / "b", size_bytes=1 << 20)
    ballast.lay()
    assert (tmp_path / "b").stat().st_blocks * 512 >= 1 << 20, "a file with a hole would keep no room"
    assert ballast.drop() and not ballast.laid
    assert not ballast.drop(), "nothing is left to give up"


def test_it_takes_what_there_is_where_there_is_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.posix_fallocate

    def full_above_200_kib(descriptor: int, offset: int, size: int) -> None:
        if size > 200 << 10:
            raise OSError(28, "No space left on device")
        real(descriptor, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", full_above_200_kib)
    Ballast(tmp_path / "b", size_bytes=1 << 20).lay()
    assert (tmp_path / "b").stat().st_size == 128 << 10


def test_a_disk_without_any_room_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def full(descriptor: int, offset: int, size: int) -> None:
        asked.append(size)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    ballast = Ballast(tmp_path / "b", size_bytes=1 << 20)
    ballast.lay()
    assert not ballast.laid and asked[-1] == LEAST_BYTES
