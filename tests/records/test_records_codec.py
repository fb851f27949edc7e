"""Which codec is loaded, and Java's hash."""

import importlib.util
import os
import sys

import pytest

import ottla.records
from ottla.records import NATIVE, codec, murmur2, partition_for_key


@pytest.mark.skipif(os.environ.get("OTTLA_REQUIRE_NATIVE") != "1", reason="a machine without a C compiler may go without")
def test_the_compiled_codec_is_loaded_where_it_is_required() -> None:
    assert NATIVE


def test_without_the_compiled_codec_its_twin_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ottla.records._native", None)
    monkeypatch.delattr(ottla.records, "_native", raising=False)
    spec = importlib.util.spec_from_file_location("codec_without_compiler", codec.__file__)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.NATIVE is False
    assert module.murmur2(b"21") == -973932308
    builder = module.Builder()
    builder.append(7, b"k", None)
    batch = builder.take()
    assert module.decode_records(batch, 61, len(batch), 1, 5, 7, None, 0, 9) == [(5, 7, b"k", None, ())]


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_hash_as_in_java(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed
    assert partition_for_key(key, 12) == (hashed & 0x7FFFFFFF) % 12
