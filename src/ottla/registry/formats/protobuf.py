"""Protobuf schemas: `.proto` files, compiled by protoc as grpcio-tools carries it.

A text is stored as it came, with its comments. A descriptor as base64, which serializers of Python send, is stored as text. Imports of
`google/protobuf/` need no references.
"""

from __future__ import annotations

import ast
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
_SYNTAX = re.compile(r"^\s*(syntax|edition)\s*=", re.MULTILINE)
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
        text = proto_text(described)
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
    known = os.path.join(os.path.dirname(grpc_tools.__file__), "_proto")
    with tempfile.TemporaryDirectory(prefix="ottla-proto-") as directory:
        for name, text in texts.items():
            parts = PurePosixPath(name)
            if parts.is_absolute() or ".." in parts.parts or "\\" in name or "\0" in name or not parts.parts:
                raise InvalidSchema(f"a reference cannot be called {name!r}: it is the path of an import")
            path = Path(directory, *parts.parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text if _SYNTAX.search(text) else f'syntax = "proto2"; {text}')
        try:
            # Generates Python modules in memory; each has its descriptor as bytes. The public interface would print errors to stderr.
            modules = protoc.get_protos(MAIN.encode(), [directory.encode(), known.encode()])
        except protoc.ProtocErrors as error:
            raise InvalidSchema("; ".join(_said(one) for one in error.errors())) from None
    return [FileDescriptorProto.FromString(_serialized(code)) for _, code in modules]


def _said(error: Any) -> str:
    message = error.message.decode(errors="replace") if isinstance(error.message, bytes) else str(error.message)
    name = error.filename.decode(errors="replace") if isinstance(error.filename, bytes) else str(error.filename)
    return f"{'' if name == MAIN else name + ', '}line {error.line + 1}: {message}"


def _serialized(code: bytes) -> bytes:
    """The descriptor in a generated module."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "AddSerializedFile":
            argument = node.args[0]
            if isinstance(argument, ast.Constant) and isinstance(argument.value, bytes):
                return argument.value
    raise InvalidSchema("protoc gave no descriptor")
