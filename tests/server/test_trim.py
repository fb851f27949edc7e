"""Freed memory is returned to the system when there is much of it, and not more often."""

import subprocess
import sys

import pytest

from ottla.server.memory_trim import STEP_BYTES, TrimPolicy, heap_of_process

MIB = 1 << 20


class FakeHeap:
    """An allocator: what is in use, what is free, and what of that was given back."""

    def __init__(self) -> None:
        self.used = 40 * MIB
        self.free = self.returned = 0
        self.trims = 0

    def take(self, size: int) -> None:
        reused = min(size, self.free)
        self.free -= reused
        self.returned = min(self.returned, self.free)
        self.used += size

    def release(self, size: int) -> None:
        self.used -= size
        self.free += size

    def free_bytes(self) -> int:
        return self.free

    def resident_bytes(self) -> int:
        return self.used + self.free - self.returned

    def trim(self) -> None:
        self.trims += 1
        self.returned = self.free


def test_memory_that_was_freed_goes_back_once() -> None:
    heap = FakeHeap()
    trimming = TrimPolicy(heap)
    heap.take(500 * MIB)
    assert not trimming.look(), "it is in use"
    heap.release(480 * MIB)
    assert [trimming.look() for _ in range(3)] == [True, False, False]
    assert heap.resident_bytes() == 60 * MIB


def test_memory_that_was_taken_and_freed_between_two_looks_goes_back() -> None:
    heap = FakeHeap()
    trimming = TrimPolicy(heap)
    for _ in range(3):
        heap.take(500 * MIB)
        heap.release(500 * MIB)
        assert trimming.look() and heap.resident_bytes() == 40 * MIB


def test_memory_that_stays_in_use_is_trimmed_after_it_was_freed() -> None:
    heap = FakeHeap()
    trimming = TrimPolicy(heap)
    heap.take(500 * MIB)
    heap.release(100 * MIB)
    assert trimming.look()
    heap.release(300 * MIB)
    assert trimming.look() and heap.resident_bytes() == 140 * MIB


def test_little_is_left_alone() -> None:
    heap = FakeHeap()
    trimming = TrimPolicy(heap)
    for _ in range(10):
        heap.take(STEP_BYTES - MIB)
        heap.release(STEP_BYTES - MIB)
        assert not trimming.look()
    assert heap.trims == 0


@pytest.mark.skipif(heap_of_process() is None, reason="needs glibc 2.33")
def test_the_allocator_of_this_system_gives_memory_back() -> None:
    """In a process of its own: freed blocks below one that is used stay resident until they are trimmed."""
    script = """
from ottla.server.memory_trim import TrimPolicy, heap_of_process
heap = heap_of_process()
trimming = TrimPolicy(heap)
blocks = [bytes(2_000) for _ in range(50_000)]
last = bytes(2_000)
full = heap.resident_bytes()
del blocks
kept = heap.resident_bytes()
assert trimming.look(), (heap.free_bytes(), kept)
print(full >> 20, kept >> 20, heap.resident_bytes() >> 20)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    full, kept, trimmed = map(int, done.stdout.split())
    assert kept > full - 20 and trimmed < full - 70, done.stdout


@pytest.mark.skipif(heap_of_process() is None, reason="needs glibc 2.33")
def test_it_looks_without_a_descriptor_to_spare() -> None:
    script = """
import os, resource
from ottla.server.memory_trim import TrimPolicy, heap_of_process
trimming = TrimPolicy(heap_of_process())
resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
try:
    os.open("/proc/self/statm", os.O_RDONLY)
except OSError:
    print(trimming.look())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
