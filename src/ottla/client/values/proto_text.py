"""The text of a `.proto` file from its descriptor.

Serializers of Python send a descriptor (FileDescriptorProto) as base64 where those of other languages send text. The text has no comments.
Options that extend Protobuf's own are left out, because the descriptor has them as numbers only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

INDENT = "  "
#: FieldDescriptorProto.Type, by number.
SCALARS = {
    1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 6: "fixed64", 7: "fixed32", 8: "bool", 9: "string", 12: "bytes",
    13: "uint32", 15: "sfixed32", 16: "sfixed64", 17: "sint32", 18: "sint64",
}  # fmt: skip
GROUP, MESSAGE, ENUM = 10, 11, 14
OPTIONAL, REQUIRED, REPEATED = 1, 2, 3
#: The end of ranges that say `max`: fields, enum values.
FIELD_MAX, ENUM_MAX = 2**29, 2**31 - 1
EDITIONS = 1000


def proto_text(file: Any) -> str:
    """The text of a FileDescriptorProto."""
    lines = []
    if file.syntax == "editions":
        lines.append(f'edition = "{_edition(file)}";')
    elif file.syntax:
        lines.append(f'syntax = "{file.syntax}";')
    if file.package:
        lines.append(f"package {file.package};")
    for index, name in enumerate(file.dependency):
        kind = "public " if index in file.public_dependency else "weak " if index in file.weak_dependency else ""
        lines.append(f'import {kind}"{name}";')
    lines += _options(file.options)
    proto3 = file.syntax != "proto2" and file.syntax != ""
    for extension in file.extension:
        lines += ["", f"extend {extension.extendee} {{", f"{INDENT}{_field(extension, labels=not proto3)}", "}"]
    for message in file.message_type:
        lines += ["", *_message(message, proto3)]
    for enum in file.enum_type:
        lines += ["", *_enum(enum)]
    for service in file.service:
        lines += ["", *_service(service)]
    return "\n".join(lines) + "\n"


def _edition(file: Any) -> str:
    # Edition's numbers are 998 and 999 for the old syntaxes, and a year from 1000 on.
    return str(2023 + file.edition - EDITIONS)


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (INDENT + line if line else line for line in lines)


def _options(options: Any, skipped: Iterable[str] = ()) -> list[str]:
    return [f"option {name} = {value};" for name, value in _option_values(options, skipped)]


def _option_values(options: Any, skipped: Iterable[str] = ()) -> list[tuple[str, str]]:
    """The options that are set, as they are written."""
    found = []
    for field, value in options.ListFields():
        if field.name in ("uninterpreted_option", *skipped) or field.is_extension or field.message_type is not None:
            continue
        found += [(field.name, _constant(field, one)) for one in (value if field.is_repeated else [value])]
    return found


def _constant(field: Any, value: Any) -> str:
    if field.enum_type is not None:
        return str(field.enum_type.values_by_number[value].name)
    if isinstance(value, bool):
        return "true" if value else "false"
    return _quoted(value) if isinstance(value, str) else str(value)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return f'"{escaped}"'


def _message(message: Any, proto3: bool) -> list[str]:
    lines = [f"message {message.name} {{", *_indented(_body(message, proto3)), "}"]
    return lines


def _body(message: Any, proto3: bool) -> list[str]:
    lines = _options(message.options, ("map_entry",))
    maps = {nested.name: nested for nested in message.nested_type if nested.options.map_entry}
    groups = {field.type_name.rpartition(".")[2] for field in message.field if field.type == GROUP}
    written: set[int] = set()
    for field in message.field:
        if not field.HasField("oneof_index") or field.proto3_optional:
            lines += _lines_of(field, message, maps, proto3)
        elif field.oneof_index not in written:
            written.add(field.oneof_index)
            oneof = message.oneof_decl[field.oneof_index]
            lines.append(f"oneof {oneof.name} {{")
            lines += _indented(_options(oneof.options))
            for member in message.field:
                if member.HasField("oneof_index") and member.oneof_index == field.oneof_index:
                    lines += _indented(_lines_of(member, message, maps, True))
            lines.append("}")
    lines += _ranges("extensions", message.extension_range, FIELD_MAX) + _ranges("reserved", message.reserved_range, FIELD_MAX)
    if message.reserved_name:
        lines.append(f"reserved {', '.join(map(_quoted, message.reserved_name))};")
    for nested in message.nested_type:
        if not nested.options.map_entry and nested.name not in groups:
            lines += ["", *_message(nested, proto3)]
    for enum in message.enum_type:
        lines += ["", *_enum(enum)]
    for extension in message.extension:
        lines += [f"extend {extension.extendee} {{", f"{INDENT}{_field(extension, labels=not proto3)}", "}"]
    return lines


def _lines_of(field: Any, message: Any, maps: dict[str, Any], proto3: bool) -> list[str]:
    name = field.type_name.rpartition(".")[2]
    if field.type == GROUP:
        group = next(nested for nested in message.nested_type if nested.name == name)
        label = "" if proto3 else _label(field)
        return [f"{label}group {name} = {field.number} {{", *_indented(_body(group, proto3)), "}"]
    if field.type == MESSAGE and name in maps and field.label == REPEATED:
        key, value = maps[name].field
        return [f"map<{_type(key)}, {_type(value)}> {field.name} = {field.number}{_in_brackets(field)};"]
    return [_field(field, labels=not proto3 and not field.HasField("oneof_index"))]


def _label(field: Any) -> str:
    return {OPTIONAL: "optional ", REQUIRED: "required ", REPEATED: "repeated "}[field.label]


def _field(field: Any, *, labels: bool) -> str:
    shown = labels or field.proto3_optional or field.label == REPEATED
    return f"{_label(field) if shown else ''}{_type(field)} {field.name} = {field.number}{_in_brackets(field)};"


def _type(field: Any) -> str:
    return SCALARS.get(field.type) or str(field.type_name)


def _in_brackets(field: Any) -> str:
    """Options of a field, its default, and a JSON name that is not the usual one."""
    options = []
    if field.HasField("default_value"):
        quoted = field.type in (9, 12)
        options.append(
            (
                "default",
                (_quoted(field.default_value) if field.type == 9 else f'"{field.default_value}"') if quoted else field.default_value,
            )
        )
    if field.json_name and field.json_name != usual_json_name(field.name):
        options.append(("json_name", _quoted(field.json_name)))
    options += _option_values(field.options)
    return f" [{', '.join(f'{name} = {value}' for name, value in options)}]" if options else ""


def usual_json_name(name: str) -> str:
    """The name in JSON that protoc makes of a field's: lower camel case."""
    first, *others = name.split("_")
    return first + "".join(one[:1].upper() + one[1:] for one in others)


def _ranges(word: str, ranges: Iterable[Any], end: int, *, inclusive: bool = False) -> list[str]:
    texts = []
    for one in ranges:
        last = one.end if inclusive else one.end - 1
        texts.append(str(one.start) if last == one.start else f"{one.start} to {'max' if one.end >= end else last}")
    return [f"{word} {', '.join(texts)};"] if texts else []


def _enum(enum: Any) -> list[str]:
    lines = _options(enum.options)
    for value in enum.value:
        options = _option_values(value.options)
        shown = f" [{', '.join(f'{name} = {text}' for name, text in options)}]" if options else ""
        lines.append(f"{value.name} = {value.number}{shown};")
    lines += _ranges("reserved", enum.reserved_range, ENUM_MAX, inclusive=True)
    if enum.reserved_name:
        lines.append(f"reserved {', '.join(map(_quoted, enum.reserved_name))};")
    return [f"enum {enum.name} {{", *_indented(lines), "}"]


def _service(service: Any) -> list[str]:
    lines = _options(service.options)
    for method in service.method:
        sent = ("stream " if method.client_streaming else "") + method.input_type
        received = ("stream " if method.server_streaming else "") + method.output_type
        options = _options(method.options)
        head = f"rpc {method.name} ({sent}) returns ({received})"
        lines += [f"{head} {{", *_indented(options), "}"] if options else [f"{head};"]
    return [f"service {service.name} {{", *_indented(lines), "}"]
