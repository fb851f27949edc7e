"""Delta tables by Arrow and the package deltalake: one transaction per batch, and each batch at most once.

Each transaction carries (application, batch id) as an application transaction of the Delta protocol, so a batch that is run again after a
crash is recognised and left out: `append` writes each row once. `merge` and `replace` would come to the same result twice; they are left
out too.

    append   rows are added                        merge   rows with the same keys are replaced, others added
    replace  the table becomes this batch          (the last two are for results that change: aggregates)
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


class TableMismatch(ValueError):
    """The table is there, with other columns."""


def committed(path: str, application: str, batch_id: int) -> bool:
    """Whether the table at `path` holds this batch already."""
    table = opened(path)
    version = None if table is None else table.transaction_version(application)
    return version is not None and version >= batch_id


def opened(path: str) -> Any:
    """The table, or None where there is none."""
    from deltalake import DeltaTable

    return DeltaTable(path) if DeltaTable.is_deltatable(path) else None


def ensure(path: str, schema: Any) -> None:
    """Creates the table where there is none. Raises: TableMismatch when one is there with other columns."""
    from deltalake import DeltaTable

    table = opened(path)
    if table is None:
        DeltaTable.create(path, schema=schema, mode="ignore")
        return
    there, wanted = ({field.name: str(field.type) for field in one.fields} for one in (table.schema(), schema))
    if there != wanted:
        raise TableMismatch(f"the table at {path} has the columns {there} and the results have {wanted}; write to another path")


def schema_of_arrow(schema: "pa.Schema") -> Any:
    """Delta's schema of an Arrow table. Every column may be null: what a query never leaves empty today, it may tomorrow."""
    from deltalake import Schema

    return Schema.from_arrow(_nullable(schema))


def _nullable(schema: "pa.Schema") -> "pa.Schema":
    import pyarrow as pa

    return pa.schema([field.with_nullable(True) for field in schema])


def write(path: str, table: "pa.Table", *, mode: str, keys: tuple[str, ...], application: str, batch_id: int) -> bool:
    """One transaction with the rows of `table`; False when the batch is there already. Raises: TableMismatch."""
    from deltalake import write_deltalake

    if committed(path, application, batch_id):
        return False
    table = table.cast(_nullable(table.schema))
    ensure(path, schema_of_arrow(table.schema))
    properties = commit_properties_of(application, batch_id)
    if mode != "merge":
        write_deltalake(path, table, mode="overwrite" if mode == "replace" else "append", commit_properties=properties)
        return True
    same = " AND ".join(f"(t.`{key}` = s.`{key}` OR (t.`{key}` IS NULL AND s.`{key}` IS NULL))" for key in keys)
    merging = opened(path).merge(table, predicate=same, source_alias="s", target_alias="t", commit_properties=properties)
    merging.when_matched_update_all().when_not_matched_insert_all().execute()
    return True


def commit_properties_of(application: str, batch_id: int) -> Any:
    from deltalake import CommitProperties, Transaction

    return CommitProperties(app_transactions=[Transaction(app_id=application, version=batch_id)])
