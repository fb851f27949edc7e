"""The columns of a pipeline's sources without Spark, for the check of SQL by names (quick_check.py). None where only Spark knows them.

topics    fields, DDL or groups of the pattern; Avro schemas in the file; not schemas of a registry, not Protobuf
files     their DDL; the first line of csv; the schema of Parquet; not JSON, whose columns Spark infers from all rows
delta     the schema of the table
"""

import csv
import glob
import json
from pathlib import Path

from ottla.spark.pipeline.config.decode import named_groups
from ottla.spark.pipeline.config.model import Decode, Pipeline, Source
from ottla.spark.pipeline.sql_names import Columns, OutColumn, ddl_columns

METADATA = (("_topic", "string"), ("_partition", "int"), ("_offset", "bigint"), ("_timestamp", "timestamp"))
#: Options of Spark's csv reader that do not change the names of columns.
CSV_OPTIONS = ("header", "sep", "delimiter", "inferschema", "mode", "nullvalue", "dateformat", "timestampformat", "maxfilespertrigger")


def source_columns(pipeline: Pipeline, source: Source) -> Columns:
    """The columns of a source's view. Raises: PipelineError for a table or files that do not exist."""
    match source.type:
        case "topic":
            assert source.decode is not None, "topics have one"
            return _decoded(source.decode)
        case "files":
            return _files(pipeline, source)
        case "delta":
            return _table(pipeline, source)


def _decoded(decode: Decode) -> Columns:
    fields = _values(decode)
    if fields is None:
        return None
    key = "binary" if decode.record_key.format == "raw" else "string" if decode.record_key.format == "text" else None
    rest = [("_malformed", "boolean"), ("_key", key), *METADATA, *([("_headers", None)] if decode.headers else [])]
    return (*fields, *(OutColumn(name, kind) for name, kind in rest))


def _values(decode: Decode) -> Columns:
    match decode.format:
        case "text":
            return (OutColumn("value", "string"),)
        case "raw":
            return (OutColumn("value", "binary"),)
        case "regex":
            assert decode.pattern is not None, "checked with the file"
            kinds = {name: field.type.lower() for name, field in decode.fields.items()}
            return tuple(OutColumn(name, kinds.get(name, "string")) for name in named_groups(decode.pattern))
        case "json" | "csv":
            if decode.schema:
                return ddl_columns(decode.schema)
            return tuple(OutColumn(name, field.type.lower()) for name, field in decode.fields.items())
        case "avro":
            schema = json.loads(decode.options.get("valueSchema", "null"))
            fields = schema.get("fields") if isinstance(schema, dict) and schema.get("type") == "record" else None
            return None if fields is None else tuple(OutColumn(str(one["name"])) for one in fields)
        case "json-schema":
            return ddl_columns(decode.options["valueSchema"]) if "valueSchema" in decode.options else None
        case "protobuf":
            return None


def _files(pipeline: Pipeline, source: Source) -> Columns:
    if source.format == "text":
        columns: Columns = (OutColumn("value", "string"),)
    elif source.schema:
        columns = ddl_columns(source.schema)
    else:
        columns = _inferred(pipeline, source)
    # Directories such as day=2026-05-17/ become columns.
    assert source.path is not None, "checked with the file"
    return None if "=" in source.path or Path(source.path).is_dir() else columns


def _inferred(pipeline: Pipeline, source: Source) -> Columns:
    assert source.path is not None, "checked with the file"
    if "{" in source.path or Path(source.path).is_dir():
        return None
    found = sorted(glob.glob(source.path))
    if not found:
        raise pipeline.error(f"{source.key}path", f"no files at {source.path}")
    options = {name.lower(): value for name, value in source.options.items()}
    if source.format == "csv" and options.get("header") == "true" and len(found) == 1 and set(options) <= set(CSV_OPTIONS):
        separator = options.get("sep") or options.get("delimiter") or ","
        if len(separator) == 1:
            with Path(found[0]).open(encoding="utf-8-sig", errors="replace", newline="") as lines:
                names = next(csv.reader(lines, delimiter=separator), [])
            # Spark renames empty and repeated names.
            unique = len({name.lower() for name in names}) == len(names) and all(names)
            return tuple(OutColumn(name) for name in names) if unique else None
    if source.format == "parquet" and len(found) == 1 and Path(found[0]).is_file():
        import pyarrow.parquet as pq

        return tuple(OutColumn(name) for name in pq.read_schema(found[0]).names)
    return None


def _table(pipeline: Pipeline, source: Source) -> Columns:
    from deltalake.exceptions import DeltaError

    from ottla.lake.storage import StorageError, plain
    from ottla.lake.table import delta

    try:
        table = delta.opened(source.place)
        if table is None:
            raise pipeline.error(f"{source.key}path", f"there is no Delta table at {source.place}")
        fields = json.loads(table.schema().to_json())["fields"]
    except (DeltaError, StorageError, OSError) as error:
        raise pipeline.error(f"{source.key}path", plain(str(error))) from None
    return tuple(OutColumn(one["name"], _spark_type(one["type"])) for one in fields)


def _spark_type(kind: object) -> str | None:
    names = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}
    return names.get(kind, kind) if isinstance(kind, str) else None
