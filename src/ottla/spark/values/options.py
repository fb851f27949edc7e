"""How values are decoded inside the source: the options, parsed. Pure.

    valueFormat     json                 avro                          csv                     protobuf
    valueSchema     columns as DDL       Avro's, as JSON               columns as DDL
    or              .schema(...)         schema.registry.url           .schema(...)
    besides                              valueSubject                  valueSeparator          valueDescriptor (a file),
                                                                       valueNull               valueMessage
    valueMode       permissive, dropmalformed or failfast, for all of them

`schema.registry.url` takes values framed as schema registries have it: a zero byte, the schema's id in four bytes, the value.
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

#: In the order in which an error names them.
FORMATS = ("json", "avro", "csv", "protobuf")
MODES = ("permissive", "dropmalformed", "failfast")
#: Which options a format has besides valueFormat and valueMode.
OF_FORMAT = {
    "json": ("valueSchema",),
    "avro": ("valueSchema", "schema.registry.url", "valueSubject"),
    "csv": ("valueSchema", "valueSeparator", "valueNull"),
    "protobuf": ("valueDescriptor", "valueMessage"),
}
VALUE_OPTIONS = ("valueFormat", "valueMode", *dict.fromkeys(name for names in OF_FORMAT.values() for name in names))


@dataclass(frozen=True, slots=True)
class ValueOptions:
    """What values are and what becomes of those that are not."""

    format: Literal["json", "avro", "csv", "protobuf"]
    #: `permissive`: null, and the bytes in the column `_corrupt`; `dropmalformed`: no row; `failfast`: the query ends.
    mode: Literal["permissive", "dropmalformed", "failfast"] = "permissive"
    schema: str | None = None
    registry_url: str | None = None
    #: The registry's name for the schemas of a topic's values, where that is not TOPIC-value.
    subject: str | None = None
    separator: str = ","
    null: str = ""
    #: A file of protobuf descriptors, as `protoc --descriptor_set_out --include_imports` writes it; read on the driver.
    descriptor: str | None = None
    message: str | None = None


class Given(Protocol):
    """The options as given (`options`)."""

    values: dict[str, str]

    def text(self, name: str) -> str | None: ...

    def path(self, name: str) -> str | None: ...

    def choice(self, name: str, choices: tuple[str, ...]) -> Any: ...

    def refuse(self, name: str, problem: str) -> Exception: ...


def value_options(given: Given) -> ValueOptions | None:
    """The options of values; None: values are bytes. Raises: OptionError."""
    if given.text("valueFormat") is None:
        for name in VALUE_OPTIONS:
            if name.lower() in given.values:
                raise given.refuse(name, f"says how values are decoded; say with valueFormat what they are: {', '.join(FORMATS)}")
        return None
    chosen = given.choice("valueFormat", FORMATS)
    for name in VALUE_OPTIONS[2:]:
        if name.lower() in given.values and name not in OF_FORMAT[chosen]:
            raise given.refuse(name, f"has no meaning for {chosen}, which has {', '.join(OF_FORMAT[chosen])}")
    parsed = ValueOptions(
        format=chosen,
        mode=given.choice("valueMode", MODES),
        schema=given.text("valueSchema"),
        registry_url=given.text("schema.registry.url"),
        subject=given.text("valueSubject"),
        separator=given.values.get("valueseparator", ","),
        null=given.values.get("valuenull", ""),
        descriptor=given.path("valueDescriptor"),
        message=given.text("valueMessage"),
    )
    if len(parsed.separator) != 1:
        raise given.refuse("valueSeparator", f"is one character, not {parsed.separator!r}")
    if chosen == "protobuf" and not (parsed.descriptor and parsed.message):
        missing = "valueMessage" if parsed.descriptor else "valueDescriptor"
        raise given.refuse(missing, "is missing: protobuf needs a file of descriptors and the full name of a message in it")
    if chosen == "avro" and not (parsed.schema or parsed.registry_url):
        raise given.refuse("valueSchema", "is missing: avro needs its schema as JSON, or schema.registry.url")
    return parsed
