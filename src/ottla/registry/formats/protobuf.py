"""Protobuf schemas: `.proto` files, compiled by protoc as grpcio-tools carries it.

A text is stored as it came, with its comments. A descriptor as base64, which serializers of Python send, is stored as text. Imports of
`google/protobuf/` need no references.

protoc runs in this process and keeps the interpreter lock. Values of options that are nested 20,000 levels deep overflow its stack, and
groups need memory of the square of their depth. So the size and the depth of texts are limited before.
"""

from __future__ import annotations

import ast
import itertools
import os
import re
import tempfile
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ottla.client.values.proto_text import proto_text
from ottla.registry.errors import InvalidSchema
from ottla.registry.records import PROTOBUF

#: Name of the schema's file while it is compiled, and in its descriptor.
MAIN = "default.proto"
#: protoc logs a warning about files that do not name their syntax.
_SYNTAX = re.compile(r"^[^\S\n]*(syntax|edition)\s*=", re.MULTILINE)
#: Characters of a schema with its imports. 1 MiB of empty messages takes protoc 4 s.
TEXTS_MAX = 1 << 20
#: protoc permits 32 levels of messages.
DEPTH_MAX = 100
#: Brackets, and what can contain other ones. A literal or a comment without an end ends with its line, or with the file.
_PARTS = re.compile(r"""//|/\*|[][{}<>]|"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?""")
#: The call of a generated module that has the descriptor.
_CALL = re.compile(rb"AddSerializedFile\((b'(?:[^'\\]|\\.)*'|b\"(?:[^\"\\]|\\.)*\")\)")
#: Errors of protoc in a message.
ERRORS_MAX = 10
_HINT = "Protobuf needs grpcio-tools: pip install 'ottla[registry]'"


@dataclass(slots=True, eq=False)
class ProtobufSchema:
    """A parsed schema. `files`: the descriptors of the imports, then its own."""

    text: str
    files: list[Any]
    type: str = PROTOBUF

    @property
    def main(self) -> Any:
        """The descriptor of the schema itself."""
        return self.files[-1]

    def print(self, form: str) -> str:
        """`serialized`: the descriptor as base64."""
        return b64encode(self.main.SerializeToString()).decode() if form == "serialized" else self.text

    def is_equivalent(self, other: Any) -> bool:
        return isinstance(other, ProtobufSchema) and self._content() == other._content()

    def _content(self) -> bytes:
        """What counts: not the comments and the order of imports."""
        copy = type(self.main)()
        copy.CopyFrom(self.main)
        imports = sorted(copy.dependency)
        del copy.dependency[:]
        copy.dependency.extend(imports)
        return bytes(copy.SerializeToString(deterministic=True))

    def incompatibilities(self, writer: Any) -> list[str]:
        """Why a reader with this schema misreads messages of the other one."""
        from ottla.registry.formats.protobuf_compatibility import incompatibilities

        return incompatibilities(self.files, writer.files)


def parse_protobuf(text: str, imports: Iterable[tuple[str, str]] = (), *, normalized: bool = False) -> ProtobufSchema:
    """Raises: InvalidSchema; ImportError."""
    described = _descriptor(text)
    if described is not None:
        try:
            text = proto_text(described)
        except (TypeError, LookupError, StopIteration):
            # Its numbers and names point at nothing, or a name is not UTF-8.
            raise InvalidSchema("the descriptor contradicts itself") from None
    files = _compiled({**dict(imports), MAIN: text})
    return ProtobufSchema(proto_text(files[-1]) if normalized else text, files)


def _descriptor(text: str) -> Any:
    """The descriptor that a text is in base64; None if it is a `.proto` file."""
    try:
        data = b64decode(text.strip(), validate=True)
    except (Base64Error, ValueError):
        return None
    try:
        from google.protobuf.descriptor_pb2 import FileDescriptorProto
        from google.protobuf.message import DecodeError
    except ImportError as error:
        raise ImportError(_HINT) from error
    try:
        return FileDescriptorProto.FromString(data)
    except DecodeError:
        raise InvalidSchema("neither a .proto file nor a descriptor (FileDescriptorProto) in base64") from None


def _compiled(texts: dict[str, str]) -> list[Any]:
    """Descriptors of all files that MAIN needs, and of MAIN as the last. Raises: InvalidSchema, ImportError."""
    try:
        import grpc_tools
        from google.protobuf.descriptor_pb2 import FileDescriptorProto
        from grpc_tools import _protoc_compiler as protoc
    except ImportError as error:
        raise ImportError(_HINT) from error
    if sum(map(len, texts.values())) > TEXTS_MAX:
        raise InvalidSchema(f"a Protobuf schema with its imports has at most {TEXTS_MAX} characters")
    if any(_is_deep(text) for text in texts.values()):
        raise InvalidSchema(f"a Protobuf schema has at most {DEPTH_MAX} levels of brackets")
    known = os.path.join(os.path.dirname(grpc_tools.__file__), "_proto")
    with tempfile.TemporaryDirectory(prefix="ottla-proto-") as directory:
        for name, text in texts.items():
            parts = PurePosixPath(name)
            if parts.is_absolute() or ".." in parts.parts or "\\" in name or "\0" in name or not parts.parts:
                raise InvalidSchema(f"a reference cannot be called {name!r}: it is the path of an import")
            path = Path(directory, *parts.parts)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text if _SYNTAX.search(text) else f'syntax = "proto2"; {text}')
            except (OSError, UnicodeEncodeError) as error:
                # A name that is too long, or that is a directory for another one.
                raise InvalidSchema(f"the reference {name[:100]!r} cannot be a file: {getattr(error, 'strerror', error)}") from None
        try:
            # Generates Python modules in memory; each has its descriptor as bytes. The public interface would print errors to stderr.
            modules = protoc.get_protos(MAIN.encode(), [directory.encode(), known.encode()])
        except protoc.ProtocErrors as error:
            raise InvalidSchema("; ".join(_said(one)[:500] for one in itertools.islice(error.errors(), ERRORS_MAX))) from None
    return [FileDescriptorProto.FromString(_serialized(code)) for _, code in modules]


def _said(error: Any) -> str:
    message = error.message.decode(errors="replace") if isinstance(error.message, bytes) else str(error.message)
    name = error.filename.decode(errors="replace") if isinstance(error.filename, bytes) else str(error.filename)
    return f"{'' if name == MAIN else name + ', '}line {error.line + 1}: {message}"


def _serialized(code: bytes) -> bytes:
    """The descriptor in a generated module."""
    # The module has many more lines, which a parser would need seconds for.
    found = _CALL.search(code)
    if found is None:
        raise InvalidSchema("protoc gave no descriptor")
    descriptor: bytes = ast.literal_eval(found[1].decode("latin-1"))
    return descriptor


def _is_deep(text: str) -> bool:
    """Whether brackets are nested more than ``DEPTH_MAX`` deep, without those of comments and literals."""
    # Of each kind, because a closing one of another kind is none for protoc.
    depths = {"{": 0, "<": 0, "[": 0}
    opening = {"}": "{", ">": "<", "]": "["}
    position = 0
    while (found := _PARTS.search(text, position)) is not None:
        position = found.end()
        part = found[0]
        if part in depths:
            depths[part] += 1
            if sum(depths.values()) > DEPTH_MAX:
                return True
        elif part in opening:
            depths[opening[part]] = max(depths[opening[part]] - 1, 0)
        elif part in ("//", "/*"):
            end = text.find("\n" if part == "//" else "*/", position)
            position = len(text) if end < 0 else end
    return False
