"""Generates the source of a decoder: one function for a message class and a version, nested structures and loops inline.

    run(b, p, end, left) -> message     b: the buffer; p: start of the body; end: its length; left: limit of array elements

A decoder in turns is a generator function: it yields after ``TURN_BYTES``, where an element counts as ``ELEMENT_BYTES`` more than its own
bytes, and records, which are not copied, as none.

Adjacent fields of fixed size, with the length of the next field, are read by one precompiled `Struct`. No length or count
is trusted: a string must fit into the remaining bytes, and so must an array's count times the minimum size of an element, before anything
is allocated. Truncated input raises IndexError or struct.error, bad UTF-8 UnicodeDecodeError; `compile` turns them into MalformedMessage.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from ottla.wire.codegen import READY_MADE, STRING_BYTES_MAX, Compiled, Part, Source
from ottla.wire.declare import Array, Blob, Field, Fixed, MessageSchema, Type, fields_of, is_request

#: struct code and size of the length before a blob, in versions that are not flexible.
_LENGTHS = {"string": ("h", 2), "bytes": ("i", 4), "records": ("i", 4)}
#: Bytes that a decoder in turns reads between two of its yields, and what an element adds to its own: about 0.2 ms.
TURN_BYTES, ELEMENT_BYTES = 24 * 1024, 64


def compile_decoder(cls: type[msgspec.Struct], schema: MessageSchema, version: int, *, in_turns: bool = False) -> Compiled:
    """Compile the decoder of one version of a message; with ``in_turns`` it is a generator function, which takes a memoryview."""
    writer = _Writer(version, schema.flexible(version), keeps_view=in_turns or holds_records(cls), in_turns=in_turns)
    value = writer.structure(cls, "")
    if not (is_request(cls) or schema.extensible):
        writer.source.line("if p != end: refuse_rest(end - p)", "end")
    writer.source.line(f"return {value}")
    return Compiled(f"decode {cls.__name__} v{version}{' in turns' if in_turns else ''}", writer.source)


def holds_records(cls: type[msgspec.Struct]) -> bool:
    """Whether a message holds records: it is then decoded from a memoryview, others from bytes, which are faster to slice."""
    return any(_holds_records(field.type) for field in fields_of(cls))


def _holds_records(kind: Type) -> bool:
    if isinstance(kind, Array):
        return _holds_records(kind.element)
    if isinstance(kind, Fixed | Blob):
        return kind == Blob("records")
    return holds_records(kind)


def bytes_min(kind: Type, version: int, *, flexible: bool, nullable: bool = False) -> int:
    """Return the minimum number of bytes of a value on the wire; at least one, so that every count is bounded."""
    if isinstance(kind, Fixed):
        return kind.size
    if isinstance(kind, Blob | Array):
        return 1 if flexible else _LENGTHS.get(getattr(kind, "name", ""), ("i", 4))[1]
    if nullable:
        return 1
    fields = [field for field in fields_of(kind) if field.present(version) and field.tag is None]
    return max(1, int(flexible) + sum(bytes_min(f.type, version, flexible=flexible, nullable=f.nullable(version)) for f in fields))


class _Writer:
    def __init__(self, version: int, flexible: bool, *, keeps_view: bool, in_turns: bool = False) -> None:
        self.source = Source("def run(b, p, end, left):")
        self.in_turns = in_turns
        if in_turns:
            self.source.line(f"due = p + {TURN_BYTES}")
            self.source.line("if b is None: yield")
        self.version = version
        self.flexible = flexible
        self.bytes_of = "b[p:q].tobytes()" if keeps_view else "b[p:q]"
        #: Fixed-size values not yet read: struct code, size, variable, label.
        self.run: list[tuple[str, int, str, str]] = []

    def structure(self, cls: type[msgspec.Struct], path: str) -> str:
        """Read all fields of a structure; returns the expression that builds it."""
        fields = fields_of(cls)
        values: dict[str, str] = {}
        for field in fields:
            if field.present(self.version) and field.tag is None:
                values[field.name] = self.value(field.type, path + field.name, nullable=field.nullable(self.version))
        if self.flexible:
            tagged = sorted((f for f in fields if f.tag is not None and f.present(self.version)), key=lambda f: f.tag or 0)
            values |= self.tags(tagged, path)
        self.flush()
        last = max((index for index, field in enumerate(fields) if field.name in values), default=-1)
        arguments = (values.get(field.name) or self.source.default(field.default) for field in fields[: last + 1])
        return f"{self.source.constant(cls.__name__, cls, lambda: cls)}({', '.join(arguments)})"

    def value(self, kind: Type, label: str, *, nullable: bool, in_tag: bool = False) -> str:
        """Read one value; returns its expression. A null structure is -1, and 0 in a tagged field."""
        if isinstance(kind, Fixed):
            return self.fixed(kind.code, kind.size, label)
        if isinstance(kind, Blob):
            return self.blob(kind, label, nullable=nullable)
        if isinstance(kind, Array):
            return self.array(kind, label, nullable=nullable)
        if not nullable:
            return self.structure(kind, label + ".")
        flag = self.fixed("b", 1, label)
        self.flush()
        result = self.source.fresh("v")
        with self.source.block(f"if {flag} {'<=' if in_tag else '<'} 0:"):
            self.source.line(f"{result} = None")
        with self.source.block("else:"):
            self.source.line(f"{result} = {self.structure(kind, label + '.')}")
        return result

    def fixed(self, code: str, size: int, label: str) -> str:
        """Add a value of fixed size to the run that the next `flush` reads."""
        variable = self.source.fresh("v")
        self.run.append((code, size, variable, label))
        return variable

    def flush(self) -> None:
        """Read the collected values of fixed size at once."""
        if not self.run:
            return
        ends = [sum(size for _, size, _, _ in self.run[: index + 1]) for index in range(len(self.run))]
        label = [Part(end, item[3]) for end, item in zip(ends, self.run, strict=True)]
        if [code for code, *_ in self.run] == ["B"]:
            self.source.line(f"{self.run[0][2]} = b[p]", label)
        else:
            layout = ">" + "".join(code for code, *_ in self.run)
            unpack = self.source.constant("read", layout, lambda: struct.Struct(layout).unpack_from)
            self.source.line(f"{', '.join(variable for _, _, variable, _ in self.run)}, = {unpack}(b, p)", label)
        self.source.line(f"p += {ends[-1]}")
        self.run.clear()

    def length(self, kind: Blob | Array, label: str) -> str:
        """Read the length of a blob or the count of an array; -1 is null."""
        if not self.flexible:
            code, size = _LENGTHS[kind.name] if isinstance(kind, Blob) else ("i", 4)
            length = self.fixed(code, size, label)
            self.flush()
            return length
        length = self.fixed("B", 1, label)
        self.flush()
        self.source.line(f"if {length} > 127: {length}, p = long_uvarint(b, p - 1)", label)
        self.source.line(f"{length} -= 1")
        return length

    def blob(self, kind: Blob, label: str, *, nullable: bool) -> str:
        """Read a string, bytes, or records."""
        length = self.length(kind, label)
        result = self.source.fresh("v")
        with self.unless_null(length, result, nullable):
            self.source.line(f"q = p + {length}")
            too_long = f" or {length} > {STRING_BYTES_MAX}" if kind.name == "string" and self.flexible else ""
            self.source.line(f"if q > end or {length} < 0{too_long}: refuse_length({length}, end - p)", label)
            form = {"string": f"{self.bytes_of}.decode()", "bytes": self.bytes_of, "records": "b[p:q]"}[kind.name]
            self.source.line(f"{result} = {form}", label)
            if self.in_turns and kind.name == "records":
                self.source.line(f"due += {length}")
            self.source.line("p = q")
        return result

    def array(self, kind: Array, label: str, *, nullable: bool) -> str:
        """Read an array, after a check of its count against the remaining bytes and elements."""
        count = self.length(kind, label)
        result = self.source.fresh("v")
        least = bytes_min(kind.element, self.version, flexible=self.flexible)
        with self.unless_null(count, result, nullable):
            excess = f"{count} < 0 or {count} * {least} > end - p or {count} > left"
            self.source.line(f"if {excess}: refuse_count({count}, {least}, end - p)", label)
            self.source.line(f"left -= {count}")
            if isinstance(kind.element, Fixed) and len(kind.element.code) == 1:
                self.numbers(kind.element, count, result, label)
            else:
                index = self.source.fresh("i")
                self.source.line(f"{result} = []")
                with self.source.block(f"for {index} in range({count}):"):
                    element = self.value(kind.element, f"{label}[{{{index}}}]", nullable=False)
                    self.flush()
                    self.source.line(f"{result}.append({element})")
                    self.turn()
        return result

    def turn(self) -> None:
        """An element was read: a decoder in turns yields if its turn is over."""
        if self.in_turns:
            self.source.line(f"due -= {ELEMENT_BYTES}")
            with self.source.block("if p >= due:"):
                self.source.line("yield")
                self.source.line(f"due = p + {TURN_BYTES}")

    def numbers(self, kind: Fixed, count: str, result: str, label: str) -> None:
        """Read numbers: short arrays with a precompiled Struct, long ones with a computed format."""
        ready = self.source.constant(
            "reads", kind.code, lambda: tuple(struct.Struct(f">{n}{kind.code}").unpack_from for n in range(READY_MADE))
        )
        long = f'unpack_from(f">{{{count}}}{kind.code}", b, p)'
        self.source.line(f"{result} = list({ready}[{count}](b, p) if {count} < {READY_MADE} else {long})", label)
        self.source.line(f"p += {count} * {kind.size}" if kind.size > 1 else f"p += {count}")

    @contextmanager
    def unless_null(self, length: str, result: str, nullable: bool) -> Iterator[None]:
        """Open the branch for a value that is not null; where null is allowed, the other branch sets None."""
        if not nullable:
            yield
            return
        with self.source.block(f"if {length} == -1:"):
            self.source.line(f"{result} = None")
        with self.source.block("else:"):
            yield

    def tags(self, tagged: list[Field], path: str) -> dict[str, str]:
        """Read the tagged section: known tags into variables, others are skipped."""
        count = self.fixed("B", 1, f"{path}tags")
        self.flush()
        values = {field.name: self.source.fresh("v") for field in tagged}
        for field in tagged:
            self.source.line(f"{values[field.name]} = {self.source.default(field.default)}")
        with self.source.block(f"if {count}:"):
            self.source.line(f"{count}, p = tag_count(b, p, end, {count}, left)", f"{path}tags")
            self.source.line(f"left -= {count}")
            if tagged or self.in_turns:
                self.tag_loop(tagged, values, count, path)
            else:
                self.source.line(f"p = skip_tags(b, p, end, {count})", f"{path}tags")
        return values

    def tag_loop(self, tagged: list[Field], values: dict[str, str], count: str, path: str) -> None:
        """Read tags one by one, ascending."""
        source, tag, stop = self.source, self.source.fresh("t"), self.source.fresh("e")
        source.line(f"{tag} = -1")
        with source.block(f"for {source.fresh('i')} in range({count}):"):
            source.line(f"{tag}, p, {stop} = tag_header(b, p, {tag}, end)", f"{path}tags")
            for position, field in enumerate(tagged):
                with source.block(f"{'elif' if position else 'if'} {tag} == {field.tag}:"):
                    value = self.value(field.type, path + field.name, nullable=field.nullable(self.version), in_tag=True)
                    self.flush()
                    source.line(f"{values[field.name]} = {value}")
                    source.line(f"if p != {stop}: refuse_tag_end(p, {stop})", path + field.name)
            with source.block("else:" if tagged else "if True:"):
                source.line(f"p = {stop}")
            self.turn()
