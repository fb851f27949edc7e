"""`ottla registry list`, `show`, `register`, `check`, `delete`: schemas of a registry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from ottla.cli.common.confirmation import NOTHING_CHANGED, confirm, dry_run_option, yes_option
from ottla.cli.common.connection import combined
from ottla.cli.common.output_formats import OutputFormat, fields, note, output_option
from ottla.cli.common.paths import LocalPath
from ottla.cli.common.tables import Column

if TYPE_CHECKING:
    from ottla.client.schema_registry import Reference, Registry

DEFAULT_ADDRESS = "http://127.0.0.1:8081"
#: Types by the ends of file names.
TYPES = {".avsc": "AVRO", ".avro": "AVRO", ".json": "JSON", ".proto": "PROTOBUF"}
SUBJECT = {
    "subject": "name of the subject",
    "versions": "its versions; those that are soft-deleted only with --deleted",
    "type": "type of the newest version: AVRO, JSON or PROTOBUF",
    "id": "id of the newest version",
}
SCHEMA = {
    "subject": "name of the subject; empty if the schema is shown by id",
    "version": "number of the version; 0 if the schema is shown by id",
    "id": "id of the schema",
    "type": "AVRO, JSON or PROTOBUF",
    "references": "schemas that it imports: name, subject, version",
    "schema": "the text",
}
CHECK = {"compatible": "whether the schema may follow", "reasons": "why not"}
SUBJECTS = (
    Column("SUBJECT", "subject"),
    Column("VERSIONS", lambda row: ",".join(map(str, row["versions"]))),
    Column("TYPE", "type"),
    Column("ID", "id", number=True),
)

#: `--registry`, with a default.
address_option = click.option(
    "--registry", "address", metavar="URL[,URL...]", envvar="OTTLA_REGISTRY", default=DEFAULT_ADDRESS, show_default=True,
    help="Schema registry; also OTTLA_REGISTRY, and OTTLA_REGISTRY_USER, _TOKEN, _CA, _CERTIFICATE, _KEY.",
)  # fmt: skip
registry_options = combined(output_option, address_option)
_type_option = click.option(
    "--type", "kind", type=click.Choice(("avro", "json", "protobuf")), help="Type of the schema. [default: by the file's name]"
)
_reference_option = click.option(
    "--reference", "references", metavar="NAME=SUBJECT:VERSION", multiple=True, help="Schema that it imports by NAME; repeatable."
)
_file_argument = click.argument("file", type=LocalPath(path_type=Path, dir_okay=False, exists=True))


@contextmanager
def registry_client(address: str) -> Iterator[Registry]:
    """A client, whose errors become one line."""
    from ottla.client.schema_registry import Registry, RegistryFailed

    try:
        registry = Registry(address, option="--registry")
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except ImportError as error:
        raise click.ClickException(str(error)) from None
    try:
        yield registry
    except (RegistryFailed, ValueError) as error:
        raise click.ClickException(str(error)) from None
    finally:
        registry.close()


@fields(SUBJECT)
@click.command(name="list")
@click.argument("prefix", default="")
@click.option("--deleted", is_flag=True, help="Include soft-deleted subjects and versions.")
@registry_options
def list_(prefix: str, deleted: bool, output: OutputFormat, address: str) -> None:
    """List subjects with their versions, all or those that begin with PREFIX."""
    flag = "&deleted=true" if deleted else ""
    with registry_client(address) as registry:
        found = registry.ask("GET", f"/schemas?subjectPrefix={quote(prefix or ':*:', safe='')}{flag}")
    rows: dict[str, dict[str, Any]] = {}
    for one in found:
        row = rows.setdefault(one["subject"], {"subject": one["subject"], "versions": []})
        row["versions"].append(one["version"])
        row |= {"type": one.get("schemaType", "AVRO"), "id": one["id"]}
    output.show([row for _, row in sorted(rows.items())], SUBJECTS)


@fields(SCHEMA)
@click.command(name="show")
@click.argument("subject", metavar="SUBJECT[@VERSION]", default="")
@click.option("--id", "number", type=click.IntRange(0), help="Show the schema with this id instead.")
@registry_options
def show(subject: str, number: int | None, output: OutputFormat, address: str) -> None:
    """Show a schema: the newest of a subject, one version of it, or one by id."""
    if (number is None) == (not subject):
        raise click.UsageError("name a subject, or an id with --id")
    name, version = _version_of(subject)
    path = f"/schemas/ids/{number}" if number is not None else f"/subjects/{quote(name, safe='')}/versions/{version or 'latest'}"
    with registry_client(address) as registry:
        found = registry.ask("GET", path)
    document = {
        "subject": found.get("subject", ""), "version": found.get("version", 0), "id": found.get("id", number),
        "type": found.get("schemaType", "AVRO"), "references": found.get("references", []), "schema": found["schema"],
    }  # fmt: skip
    if output.is_structured:
        output.document(document)
        return
    click.echo(found["schema"].rstrip("\n"))
    if subject:
        note(f"version {document['version']}, id {document['id']}, {document['type']}")


def _version_of(text: str) -> tuple[str, str]:
    """Subject and version of SUBJECT@VERSION."""
    name, at, version = text.rpartition("@")
    if at and (version.isdecimal() or version == "latest"):
        return name, version
    return text, ""


@fields(SCHEMA)
@click.command(name="register")
@click.argument("subject")
@_file_argument
@_type_option
@_reference_option
@registry_options
def register(subject: str, file: Path, kind: str | None, references: tuple[str, ...], output: OutputFormat, address: str) -> None:
    """Register the schema of FILE as the next version of SUBJECT; an equal version is kept.

    FILE is an Avro schema (.avsc), a JSON schema (.json) or a .proto file.
    """
    text, type_ = _schema_of(file, kind)
    with registry_client(address) as registry:
        made = registry.added(subject, text, type_, _references(references))
        found = registry.ask("GET", f"/schemas/ids/{made.id}/versions?subject={quote(subject, safe='')}")
    version = made.version or max((one["version"] for one in found), default=0)
    document: dict[str, Any] = {"subject": subject, "version": version, "id": made.id, "type": type_, "references": [], "schema": text}
    if output.is_structured:
        output.document(document)
    else:
        click.echo(made.id)
        note(f"{subject} has the schema as version {version}, id {made.id}")


@fields(CHECK)
@click.command(name="check")
@click.argument("subject", metavar="SUBJECT[@VERSION]")
@_file_argument
@_type_option
@_reference_option
@registry_options
def check(subject: str, file: Path, kind: str | None, references: tuple[str, ...], output: OutputFormat, address: str) -> None:
    """Check whether the schema of FILE may follow the versions of SUBJECT; exits with 1 if not."""
    text, type_ = _schema_of(file, kind)
    name, version = _version_of(subject)
    with registry_client(address) as registry:
        reasons = registry.incompatibilities(name, text, type_, _references(references), version or None)
    if output.is_structured:
        output.document({"compatible": reasons is None, "reasons": reasons or []})
    elif reasons is None:
        click.echo("compatible")
    else:
        click.echo("incompatible")
        for reason in reasons:
            click.echo(f"  {reason}")
    if reasons is not None:
        raise SystemExit(1)


@click.command(name="delete")
@click.argument("subject", metavar="SUBJECT[@VERSION]")
@click.option("--permanent", is_flag=True, help="Delete what is soft-deleted, so that its ids no longer resolve.")
@yes_option
@dry_run_option
@address_option
def delete(subject: str, permanent: bool, yes: bool, dry_run: bool, address: str) -> None:
    """Soft-delete a subject or a version: it is no longer listed, but its ids still resolve."""
    name, version = _version_of(subject)
    path = f"/subjects/{quote(name, safe='')}" + (f"/versions/{version}" if version else "")
    with registry_client(address) as registry:
        if dry_run:
            shown = registry.ask("GET", f"/subjects/{quote(name, safe='')}/versions?deleted={'true' if permanent else 'false'}")
            note(f"Would delete {f'version {version}' if version else f'versions {shown}'} of {name}. {NOTHING_CHANGED}")
            return
        if permanent:
            confirm(f"Delete {subject} for good? Records with its ids can no longer be read.", [subject], yes=yes)
        found = registry.ask("DELETE", path + ("?permanent=true" if permanent else ""))
    note(f"deleted {f'version {found}' if version else f'versions {found}'} of {name}")


def _schema_of(file: Path, kind: str | None) -> tuple[str, str]:
    """Text and type of a schema. Raises: UsageError."""
    type_ = kind.upper() if kind is not None else TYPES.get(file.suffix)
    if type_ is None:
        raise click.UsageError(f"{file.name} does not say which type of schema it is; use --type")
    try:
        return file.read_text(), type_
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"cannot read {file}: {error}") from None


def _references(given: tuple[str, ...]) -> list[Reference]:
    """Raises: UsageError."""
    from ottla.client.schema_registry import Reference

    found = []
    for text in given:
        name, _, target = text.partition("=")
        subject, _, version = target.rpartition(":")
        if not name or not subject or not version.isdecimal():
            raise click.UsageError(f"--reference expects NAME=SUBJECT:VERSION, not {text!r}")
        found.append(Reference(name, subject, int(version)))
    return found
