"""Delta tables by Arrow and the package deltalake: one transaction per batch, and each row once.

Each commit holds (application, batch id) as an application transaction of the Delta protocol, so a batch that is repeated after a crash is
recognised. If two processes write the same batch, one commits and the other raises `Overtaken`.

    mode       effect on the table                       a batch that the table has already
    append     rows are added                            is skipped
    merge      rows with the same keys are replaced      is merged again, with the same result
    replace    all rows are replaced                     is written again; older batches are skipped

`evolve` adds columns, which are null in older rows, and accepts narrower types. Data files keep the type they were written with, so a
wider type needs a rewrite of the table, which `evolve` does with `rewrite=True`.

Frequent commits leave many small files: `compact` joins them; `vacuum` removes files that no recent version needs.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from ottla.base.units import MiB
from ottla.lake.storage import Location
from ottla.lake.table.schema_evolution import ColumnChange, Evolution, evolution

#: Target size of files: opening them does not dominate a scan.
FILE_BYTES = 128 * MiB
#: Files that are in no version of the last so many hours are removed; readers of older versions fail. Delta's own default is a week.
VACUUM_HOURS = 168
#: Attempts of a commit that conflicts with commits of other batches.
TRIES = 10
T = TypeVar("T")
#: A path of this machine, or a location.
Place = str | Location
#: Suffix of the application whose version is a hash of the last batch's content.
CONTENT = "/content"


#: What to do about rows of a batch that have the same keys.
ONE_PER_KEY = "merge needs one row for each: group by the keys, for the newest with max_by(struct(*), _offset) say"


class RepeatedKeys(ValueError):
    """Several rows to merge have the same keys."""


class TableMismatch(ValueError):
    """The table exists with other columns."""


class Overtaken(Exception):
    """Another process has written to the table as the same application, or changed it under this transaction. Nothing was written."""


def committed(path: Place, application: str, batch_id: int, content: int | None = None) -> bool:
    """Whether the table at `path` has this batch, and with this `content` if it is not None."""
    return holds(opened(path), application, batch_id, content)


def holds(table: Any, application: str, batch_id: int, content: int | None = None) -> bool:
    """`committed` for an open table, at its version."""
    version = None if table is None else table.transaction_version(application)
    if version is None or version < batch_id:
        return False
    return content is None or version > batch_id or table.transaction_version(f"{application}{CONTENT}") == content


def opened(path: Place) -> Any:
    """The table; None if there is none."""
    if isinstance(path, str) or path.is_local:
        return DeltaTable(str(path)) if DeltaTable.is_deltatable(str(path)) else None
    try:
        # `is_deltatable` would stop all threads for the time of its requests.
        return DeltaTable(path.url, storage_options=path.storage_options())
    except TableNotFoundError:
        return None


def create(
    path: Place, schema: Any, *, partition_by: Sequence[str] = (), settings: Mapping[str, str] | None = None, description: str | None = None
) -> Any:
    """The table, made where there is none: of these columns, in directories by those of `partition_by`, with `delta.*` settings.

    `schema` is Delta's or Arrow's.
    """
    try:
        DeltaTable.create(
            str(path),
            schema=_delta_schema(schema),
            mode="ignore",
            partition_by=list(partition_by) or None,
            configuration=dict(settings or {}),
            raise_if_key_not_exists=False,
            description=description,
            storage_options=None if isinstance(path, str) else path.storage_options(),
        )
    except DeltaError:
        # Another process may have made it at the same moment.
        if opened(path) is None:
            raise
    return opened(path)


def ensure(path: Place, schema: Any, *, partition_by: Sequence[str] = ()) -> None:
    """Creates the table where there is none. Raises: TableMismatch when one is there with other columns."""
    table = opened(path)
    if table is None:
        create(path, schema, partition_by=partition_by)
        return
    there, wanted = ({field.name: str(field.type) for field in one.fields} for one in (table.schema(), _delta_schema(schema)))
    if there != wanted:
        raise TableMismatch(f"the table at {path} has the columns {there} and the results have {wanted}; write to another path")


def schema_of_arrow(schema: pa.Schema) -> Any:
    """Delta's schema of an Arrow table. Every column may be null: what a query never leaves empty today, it may tomorrow."""
    return Schema.from_arrow(_nullable(schema))


def _delta_schema(schema: Any) -> Any:
    return schema if isinstance(schema, Schema) else schema_of_arrow(schema)


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])


def arrow_schema(table: Any) -> pa.Schema:
    """Arrow's schema of a Delta table."""
    return pa.schema(table.schema().to_arrow())


# ---------------------------------------------------------------------------------------------------------------- columns that change


def evolve(path: Place, schema: Any, *, partition_by: Sequence[str] = (), rewrite: bool = False) -> list[ColumnChange]:
    """Change the table at `path` so that it holds rows of `schema` (Delta's or Arrow's); create it if needed. Returns the changes.

    New columns and members of structs are added, in one transaction that touches no file. With `rewrite`, columns whose type has to become
    wider cause a rewrite of the whole table. Raises: TableMismatch for what cannot be; Overtaken where others wrote meanwhile.
    """
    # Others may add the same columns meanwhile, so each attempt compares the columns again.
    evolved = partial(_evolved, path, _delta_schema(schema), partition_by, rewrite=rewrite)
    return retried(evolved, f"others change the columns of {path} all the time")


def _evolved(path: Place, schema: Any, partition_by: Sequence[str], *, rewrite: bool) -> list[ColumnChange]:
    table = opened(path)
    if table is None:
        create(path, schema, partition_by=partition_by)
        return []
    change = evolution_of(table, schema)
    if change.refused or (change.wider and not rewrite):
        raise TableMismatch(_refusal(path, change))
    if change.wider:
        _write_anew(table, change)
        table = opened(path)
    if change.added:
        write_deltalake(table, _arrow_of(change.schema).empty_table(), mode="append", schema_mode="merge")
    return change.added + change.wider


def evolution_of(table: Any, schema: Any) -> Evolution:
    """What becomes of a table's columns when rows of `schema` come."""
    return evolution(json.loads(table.schema().to_json()), json.loads(_delta_schema(schema).to_json()))


def _refusal(path: Place, change: Evolution) -> str:
    story = "; ".join(str(one) for one in (*change.refused, *change.wider))
    todo = "cast the column to the type that the table has, give it another name, or write to another path"
    if not change.refused:
        todo += ". Files that are there hold the narrower type, so the table must be rewritten to widen it"
    return f"the table at {path} has {story}: {todo}"


def _arrow_of(schema: dict[str, Any]) -> pa.Schema:
    return pa.schema(Schema.from_json(json.dumps(schema)).to_arrow())


def _write_anew(table: Any, change: Evolution) -> None:
    """Rewrite all rows in the wider types, in one transaction. Raises: TableMismatch for a value that does not fit exactly."""
    rows = pa.RecordBatchReader.from_stream(table.scan())
    wanted = _arrow_of(_widened(json.loads(table.schema().to_json()), change))
    target = pa.schema([wanted.field(name) for name in rows.schema.names])

    def cast() -> Iterator[pa.RecordBatch]:
        for batch in rows:
            yield from pa.Table.from_batches([batch]).cast(target).to_batches()

    properties = CommitProperties(max_commit_retries=0)
    try:
        write_deltalake(
            table,
            pa.RecordBatchReader.from_batches(target, cast()),
            mode="overwrite",
            schema_mode="overwrite",
            partition_by=table.metadata().partition_columns or None,
            commit_properties=properties,
        )
    except CommitFailedError as error:
        raise Overtaken(f"other writers changed {table.table_uri} while it was rewritten: {error}") from error
    except Exception as error:
        # An error of the reader arrives as a plain Exception with its text.
        if "ArrowInvalid" in str(error) or "not in range" in str(error) or "truncated" in str(error):
            raise TableMismatch(f"the table at {table.table_uri} holds values that do not fit {change.wider[0]}: {error}") from error
        raise


def _widened(there: dict[str, Any], change: Evolution) -> dict[str, Any]:
    """The table's existing columns in their new types; added columns follow later."""
    types = {field["name"]: field["type"] for field in change.schema["fields"]}
    return {**there, "fields": [{**one, "type": _only(types[one["name"]], one["type"])} for one in there["fields"]]}


def _only(wide: Any, there: Any) -> Any:
    """The type `wide` without the members that `there` lacks."""
    if not isinstance(there, dict):
        return wide
    match there["type"]:
        case "struct":
            types = {field["name"]: field["type"] for field in wide["fields"]}
            return {**there, "fields": [{**one, "type": _only(types[one["name"]], one["type"])} for one in there["fields"]]}
        case "array":
            return {**there, "elementType": _only(wide["elementType"], there["elementType"])}
        case "map":
            return {**there, "valueType": _only(wide["valueType"], there["valueType"])}
    return wide


# ---------------------------------------------------------------------------------------------------------------- transactions


def write(
    path: Place,
    table: pa.Table,
    *,
    mode: str,
    keys: tuple[str, ...],
    application: str,
    batch_id: int,
    evolving: bool = False,
    partition_by: Sequence[str] = (),
) -> bool:
    """Write the rows of `table` in one transaction; returns False if the table already has the batch and does not change.

    `evolving`: new columns are added first, and `table` may lack columns of the table.
    Raises: TableMismatch, Overtaken, RepeatedKeys.
    """
    there = opened(path)
    again = mode != "append"
    if holds(there, application, batch_id + again):
        return False
    if mode == "merge":
        refuse_repeated(table, keys)
    table = table.cast(_nullable(table.schema))
    if evolving:
        evolve(path, table.schema, partition_by=partition_by)
    else:
        ensure(path, schema_of_arrow(table.schema), partition_by=partition_by)
    properties = commit_properties_of(application, batch_id)

    def once(there: Any) -> None:
        if mode == "merge":
            merging = merger(there, table, keys, properties, evolving=evolving)
            merging.when_matched_update_all().when_not_matched_insert_all().execute()
        else:
            append(there, table, properties, overwrite=mode == "replace")

    return transact(path, application, batch_id, once, again=again)


def refuse_repeated(table: pa.Table, keys: Sequence[str]) -> None:
    """Raises: RepeatedKeys; TableMismatch for a key that cannot be compared."""
    for key in keys:
        if pa.types.is_nested(kind := table.schema.field(key).type):
            raise TableMismatch(f"the key {key} is of type {kind}: a merge compares numbers, text, bytes and times, so select its fields")
    counts = table.group_by(list(keys)).aggregate([([], "count_all")])
    repeated = counts.filter(pc.greater(counts.column("count_all"), 1)).slice(0, 1).to_pylist()
    if repeated:
        row = ", ".join(f"{key} = {repeated[0][key]!r}" for key in keys)
        raise RepeatedKeys(f"a batch has {repeated[0]['count_all']} rows with {row}; {ONE_PER_KEY}")


def transact(path: Place, application: str, batch_id: int, once: Callable[[Any], None], *, again: bool = False) -> bool:
    """Call `once(table)` on one version of the table; returns False when it already has the batch, or with `again` a later one. Repeated
    after conflicts with writers of other applications. Raises: Overtaken.
    """

    def attempt() -> bool:
        there = opened(path)
        if holds(there, application, batch_id + again):
            return False
        once(there)
        return True

    return retried(attempt, f"another process has written to {path} as {application}, or changes it all the time")


def retried(attempt: Callable[[], T], conflict: str) -> T:
    """Calls `attempt` again after conflicts with other writers. Raises: Overtaken, with `conflict`, if an application's version moved."""
    for left in reversed(range(TRIES)):
        try:
            return attempt()
        except CommitFailedError as error:
            if "oncurrent transaction failed" in str(error) or not left:
                raise Overtaken(f"{conflict}: {error}") from error
    raise AssertionError("the last try returns or raises")


def append(there: Any, table: pa.Table, properties: Any, *, overwrite: bool = False) -> None:
    """Append the rows in one transaction on the version that was read. Columns that `table` lacks are null."""
    write_deltalake(
        there,
        table,
        mode="overwrite" if overwrite else "append",
        schema_mode="merge",
        target_file_size=FILE_BYTES,
        commit_properties=properties,
    )


def merger(there: Any, table: pa.Table, keys: Sequence[str], properties: Any, *, evolving: bool = False) -> Any:
    """Merge rows `s` into the table `t` by keys, where nulls are equal; the condition's form allows a hash join."""
    same = " AND ".join(f"(t.`{key}` IS NOT DISTINCT FROM s.`{key}`)" for key in keys)
    return there.merge(
        table, predicate=same, source_alias="s", target_alias="t", merge_schema=evolving, streamed_exec=False, commit_properties=properties
    )


def commit_properties_of(application: str, batch_id: int, *, content: int | None = None, **metadata: str) -> Any:
    """Properties of a commit: the application's batch, and its content (64 bits) if another run may write a different one;
    `metadata` is shown in the table's history.
    """
    versions = {application: batch_id} if content is None else {application: batch_id, f"{application}{CONTENT}": content}
    return commit_properties(versions, metadata)


def commit_properties(versions: Mapping[str, int], metadata: Mapping[str, str] | None = None) -> Any:
    """Properties of a commit: the version of each application."""
    transactions = [Transaction(app_id=application, version=version) for application, version in versions.items()]
    return CommitProperties(custom_metadata=dict(metadata or {}) or None, app_transactions=transactions)


# ---------------------------------------------------------------------------------------------------------------- maintenance


class Compacted(NamedTuple):
    """Number of files before and after."""

    removed: int
    added: int


def compact(path: Place, *, target_bytes: int = FILE_BYTES, partitions: Mapping[str, str] | None = None) -> Compacted:
    """Join small files of each partition to files of about `target_bytes`; the rows do not change.
    `partitions` selects some, by column and value. Returns (0, 0) if another writer changed the same files first.
    """
    chosen = None if partitions is None else [(column, "=", value) for column, value in partitions.items()]
    try:
        done = opened(path).optimize.compact(partition_filters=chosen, target_size=target_bytes)
    except CommitFailedError:
        return Compacted(0, 0)
    return Compacted(done["numFilesRemoved"], done["numFilesAdded"])


def vacuum(path: Place, *, retention_hours: int = VACUUM_HOURS, dry_run: bool = False) -> list[str]:
    """Remove files that no version of the last `retention_hours` has, and return their names; also files of killed writers.
    Less than a week also removes uncommitted files of slow writers, and files that readers still use: at your own risk.
    """
    removed: list[str] = opened(path).vacuum(
        retention_hours=retention_hours, dry_run=dry_run, enforce_retention_duration=retention_hours >= VACUUM_HOURS, full=True
    )
    return removed
