"""Options for decoding values inside the source. Pure.

    valueFormat     json                 avro                          csv                     protobuf
    valueSchema     columns as DDL       Avro's, as JSON               columns as DDL
    or              .schema(...)         schema.registry.url           .schema(...)
    besides                              valueSubject                  valueSeparator          valueDescriptor (a file),
                                                                       valueNull               valueMessage
    valueMode       permissive, dropmalformed or failfast, for all of them

With `schema.registry.url` values have a registry's frame: a zero byte, the schema's id in four bytes, the value.
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

FORMATS = ("json", "avro", "csv", "protobuf")
MODES = ("permissive", "dropmalformed", "failfast")
#: The options of each format besides valueFormat and valueMode.
OF_FORMAT = {
    "json": ("valueSchema",),
    "avro": ("valueSchema", "schema.registry.url", "valueSubject"),
    "csv": ("valueSchema", "valueSeparator", "valueNull"),
    "protobuf": ("valueDescriptor", "valueMessage"),
}
VALUE_OPTIONS = ("valueFormat", "valueMode", *dict.fromkeys(name for names in OF_FORMAT.values() for name in names))


@dataclass(frozen=True, slots=True)
class ValueOptions:
    """The format of values and how malformed ones are handled."""

    format: Literal["json", "avro", "csv", "protobuf"]
    #: `permissive`: null, and the bytes in the column `_corrupt`; `dropmalformed`: no row; `failfast`: the query fails.
    mode: Literal["permissive", "dropmalformed", "failfast"] = "permissive"
    schema: str | None = None
    registry_url: str | None = None
    #: The registry's subject, if it is not TOPIC-value.
    subject: str | None = None
    separator: str = ","
    null: str = ""
    #: A file of protobuf descriptors, as `protoc --descriptor_set_out --include_imports` writes it; read on the driver.
    descriptor: str | None = None
    message: str | None = None


class OptionLookup(Protocol):
    """Typed lookups of unparsed options (`RawOptions`)."""

    values: dict[str, str]

    def text(self, name: str) -> str | None: ...

    def path(self, name: str) -> str | None: ...

    def choice(self, name: str, choices: tuple[str, ...]) -> Any: ...

    def error(self, name: str, problem: str) -> Exception: ...


def value_options(raw: OptionLookup) -> ValueOptions | None:
    """The value options; None: values stay bytes. Raises: OptionError."""
    if raw.text("valueFormat") is None:
        for name in VALUE_OPTIONS:
            if name.lower() in raw.values:
                raise raw.error(name, f"needs valueFormat, which says how values are decoded: {', '.join(FORMATS)}")
        return None
    value_format = raw.choice("valueFormat", FORMATS)
    for name in VALUE_OPTIONS[2:]:
        if name.lower() in raw.values and name not in OF_FORMAT[value_format]:
            raise raw.error(name, f"does not apply to {value_format}, which has {', '.join(OF_FORMAT[value_format])}")
    parsed = ValueOptions(
        format=value_format,
        mode=raw.choice("valueMode", MODES),
        schema=raw.text("valueSchema"),
        registry_url=raw.text("schema.registry.url"),
        subject=raw.text("valueSubject"),
        separator=raw.values.get("valueseparator", ","),
        null=raw.values.get("valuenull", ""),
        descriptor=raw.path("valueDescriptor"),
        message=raw.text("valueMessage"),
    )
    if len(parsed.separator) != 1:
        raise raw.error("valueSeparator", f"expected one character, not {parsed.separator!r}")
    if value_format == "protobuf" and not (parsed.descriptor and parsed.message):
        missing = "valueMessage" if parsed.descriptor else "valueDescriptor"
        raise raw.error(missing, "is missing: protobuf needs a file of descriptors and the full name of a message in it")
    if value_format == "avro" and not (parsed.schema or parsed.registry_url):
        raise raw.error("valueSchema", "is missing: avro needs its schema as JSON, or schema.registry.url")
    return parsed
