"""Generates the source of an encoder: one function for a message class and a version, nested structures and loops inline.

    run(m, out, far)     m: the message; out: gets the pieces, in order; far: gets the indexes of pieces that are not copied

Adjacent fields of fixed size, with the length of the next field, are written by one precompiled `Struct`; a varint of one byte, the usual
case, is included. A field that the version lacks costs one comparison, or nothing when ignorable.
"""

from __future__ import annotations

import struct

import msgspec

from ottla.wire.codegen import READY_MADE, Compiled, Source
from ottla.wire.declare import Array, Blob, Field, Fixed, MessageSchema, Type, fields_of

#: Records of this size and above, and all that are not bytes, are not joined: the copy would cost more than another write.
FAR_BYTES_MIN = 16 * 1024
#: Pieces that an encoder in turns writes between two of its yields: about 0.2 ms.
TURN_PIECES = 1_500


def compile_encoder(cls: type[msgspec.Struct], schema: MessageSchema, version: int, *, in_turns: bool = False) -> Compiled:
    """Compile the encoder of one version of a message; with ``in_turns`` it is a generator function."""
    writer = _Writer(version, schema.flexible(version), in_turns=in_turns)
    writer.structure(cls, "m", "")
    writer.flush()
    return Compiled(f"encode {cls.__name__} v{version}{' in turns' if in_turns else ''}", writer.source)


class _Writer:
    def __init__(self, version: int, flexible: bool, *, in_turns: bool = False) -> None:
        self.source = Source("def run(m, out, far):")
        self.in_turns = in_turns
        self.version = version
        self.flexible = flexible
        #: What appends a piece; as a call of a method it costs the interpreter less than as a call of a bound one.
        self.write = "out.append"
        #: Fixed-size values not yet written: struct code, and the expression; "x", a zero byte, has none.
        self.run: list[tuple[str, str]] = []
        #: Path of the first of them.
        self.label = ""
        # A version without fields is a valid function.
        self.source.line("pass")
        if in_turns:
            self.source.line(f"pieces = {TURN_PIECES}")
            self.source.line("if out is None: yield")

    def structure(self, cls: type[msgspec.Struct], item: str, path: str) -> None:
        """Write all fields of a structure."""
        fields = fields_of(cls)
        for field in fields:
            if not field.present(self.version) and not field.ignorable:
                condition = self.differs(field, f"{item}.{field.name}")
                self.source.line(f"if {condition}: refuse_value({path + field.name!r}, {self.version})", path + field.name)
        for field in fields:
            if field.present(self.version) and field.tag is None:
                self.field(field, f"{item}.{field.name}", path + field.name)
        if self.flexible:
            self.tags([field for field in fields if field.tag is not None and field.present(self.version)], item, path)

    def differs(self, field: Field, value: str) -> str:
        """Return the condition that a field differs from its default."""
        if field.default is None:
            return f"{value} is not None"
        if field.default == []:
            return value if field.nullable_since is None else f"{value} or {value} is None"
        if field.default in (0, ""):
            return value if field.nullable_since is None else f"{value} != {field.default!r}"
        default = self.source.default(field.default)
        if isinstance(field.default, msgspec.Struct):
            return f"{value} is not {default} and {value} != {default}"
        return f"{value} != {default}"

    def field(self, field: Field, item: str, label: str) -> None:
        """Write one field; null is refused where only other versions allow it."""
        nullable = field.nullable(self.version)
        if field.nullable_since is not None and not nullable:
            self.source.line(f"if {item} is None: refuse_value({label!r}, {self.version})", label)
        self.value(field.type, item, label, nullable=nullable, in_tag=field.tag is not None)

    def value(self, kind: Type, item: str, label: str, *, nullable: bool, in_tag: bool = False) -> None:
        """Write one value."""
        if isinstance(kind, Fixed):
            if kind.name == "uuid":
                self.source.line(f"if len({item}) != 16: refuse_uuid(len({item}))", label)
            self.fixed(kind.code, item, label)
            return
        if isinstance(kind, Blob):
            self.blob(kind, item, label, nullable=nullable)
        elif isinstance(kind, Array):
            self.array(kind, item, label, nullable=nullable)
        elif nullable:
            self.nullable_structure(kind, item, label, null="0" if in_tag else "-1")
        elif item.isidentifier():
            self.structure(kind, item, label + ".")
        else:
            local = self.source.fresh("s")
            self.source.line(f"{local} = {item}", label)
            self.structure(kind, local, label + ".")

    def fixed(self, code: str, value: str, label: str) -> None:
        """Add a value of fixed size to the run that the next `flush` writes."""
        if not self.run:
            self.label = label
        self.run.append((code, value))

    def flush(self) -> None:
        """Write the collected values of fixed size at once."""
        if self.run:
            self.source.line(f"{self.write}({self.packed(self.run)})", self.label)
            self.run = []

    def packed(self, run: list[tuple[str, str]]) -> str:
        """Return the expression that packs a run."""
        values = [value for code, value in run if code != "x"]
        if not values:
            return repr(bytes(len(run)))
        layout = ">" + "".join(code for code, _ in run)
        return f"{self.source.constant('pack', layout, lambda: struct.Struct(layout).pack)}({', '.join(values)})"

    def length(self, kind: Blob | Array, local: str, label: str, *, nullable: bool) -> None:
        """Write the length of a blob or the count of an array, together with the run."""
        size = self.source.fresh("n")
        if not self.flexible:
            self.source.line(f"{size} = {f'-1 if {local} is None else ' if nullable else ''}len({local})", label)
            self.fixed("h" if isinstance(kind, Blob) and kind.name == "string" else "i", size, label)
            self.flush()
            return
        self.source.line(f"{size} = {f'0 if {local} is None else ' if nullable else ''}len({local}) + 1", label)
        varint = "string_length" if isinstance(kind, Blob) and kind.name == "string" else "uvarint"
        if not self.run:
            self.source.line(f"{self.write}(ONE_BYTE[{size}] if {size} < 128 else {varint}({size}))", label)
            return
        with self.source.block(f"if {size} < 128:"):
            self.source.line(f"{self.write}({self.packed([*self.run, ('B', size)])})", self.label)
        with self.source.block("else:"):
            self.source.line(f"{self.write}({self.packed(self.run)})", self.label)
            self.source.line(f"{self.write}({varint}({size}))", label)
        self.run = []

    def blob(self, kind: Blob, item: str, label: str, *, nullable: bool) -> None:
        """Write a string, bytes, or records."""
        local = self.source.fresh("b")
        if kind.name == "string":
            if nullable:
                self.source.line(f"{local} = {item}", label)
                self.source.line(f"if {local} is not None: {local} = {local}.encode()", label)
            else:
                self.source.line(f"{local} = {item}.encode()", label)
        else:
            self.source.line(f"{local} = {item}", label)
        self.length(kind, local, label, nullable=nullable)
        condition = f"{local} is not None" if nullable else ""
        if kind.name == "records":
            assert self.write == "out.append", "records are never in a tagged field"
            with self.source.block(f"if {local} is not None:"):
                near = f"isinstance({local}, (bytes, bytearray, memoryview)) and len({local}) < {FAR_BYTES_MIN}"
                self.source.line(f"if not ({near}): far.append(len(out))", label)
                self.source.line(f"out.append({local})", label)
        else:
            self.source.line(f"{f'if {condition}: ' if condition else ''}{self.write}({local})", label)

    def array(self, kind: Array, item: str, label: str, *, nullable: bool) -> None:
        """Write an array."""
        local = self.source.fresh("a")
        self.source.line(f"{local} = {item}", label)
        self.length(kind, local, label, nullable=nullable)
        element = kind.element
        if isinstance(element, Fixed) and len(element.code) == 1:
            ready = self.source.constant(
                "packs", element.code, lambda: tuple(struct.Struct(f">{n}{element.code}").pack for n in range(READY_MADE))
            )
            with self.source.block(f"if {local}:"):
                size = self.source.fresh("n")
                self.source.line(f"{size} = len({local})")
                long = f'pack(f">{{{size}}}{element.code}", *{local})'
                self.source.line(f"{self.write}({ready}[{size}](*{local}) if {size} < {READY_MADE} else {long})", label)
            return
        loop = self.source.fresh("e")
        with self.source.block(f"for {loop} in {f'{local} or ()' if nullable else local}:", label):
            self.value(element, loop, label + "[]", nullable=False)
            self.flush()
            # The pieces of a tag are in a list of their own.
            if self.in_turns and self.write == "out.append":
                with self.source.block("if len(out) >= pieces:"):
                    self.source.line("yield")
                    self.source.line(f"pieces = len(out) + {TURN_PIECES}")

    def nullable_structure(self, kind: type[msgspec.Struct], item: str, label: str, *, null: str) -> None:
        """Write ``null`` for null, or 1 and the structure."""
        local, run = self.source.fresh("s"), list(self.run)
        self.source.line(f"{local} = {item}", label)
        with self.source.block(f"if {local} is None:"):
            self.run = list(run)
            self.fixed("b", null, label)
            self.flush()
        with self.source.block("else:"):
            self.run = list(run)
            self.fixed("b", "1", label)
            self.structure(kind, local, label + ".")
            self.flush()

    def tags(self, tagged: list[Field], item: str, path: str) -> None:
        """Write the tagged section: usually one zero byte, which joins the run."""
        if not tagged:
            self.fixed("x", "", path + "tags")
            return
        tagged.sort(key=lambda field: field.tag or 0)
        locals_ = [self.source.fresh("t") for _ in tagged]
        for field, local in zip(tagged, locals_, strict=True):
            self.source.line(f"{local} = {item}.{field.name}", path + field.name)
        conditions = ["True" if field.sends_null else self.differs(field, local) for field, local in zip(tagged, locals_, strict=True)]
        run = list(self.run)
        with self.source.block(f"if {' or '.join(f'({condition})' for condition in conditions)}:"):
            self.flush()
            count = " + ".join(f"bool({condition})" for condition in conditions)
            self.source.line(f"{self.write}(uvarint({count}))")
            for field, local, condition in zip(tagged, locals_, conditions, strict=True):
                with self.source.block(f"if {condition}:"):
                    self.tag(field, local, path + field.name)
        with self.source.block("else:"):
            self.run = [*run, ("x", "")]
            self.flush()

    def tag(self, field: Field, local: str, label: str) -> None:
        """Write one tagged field: its number, its size, its value."""
        outer, pieces, body = self.write, self.source.fresh("o"), self.source.fresh("o")
        self.write = f"{pieces}.append"
        self.source.line(f"{pieces} = []")
        self.field(field, local, label)
        self.flush()
        self.write = outer
        self.source.line(f'{body} = b"".join({pieces})')
        self.source.line(f"{self.write}(uvarint({field.tag}) + uvarint(len({body})) + {body})")
