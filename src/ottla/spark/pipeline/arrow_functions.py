"""User functions that take and return Arrow data: whole columns in SQL, or whole batches as a step.

    def tax(amount: pa.DoubleArray, category: pa.StringArray) -> pa.DoubleArray                a function of SQL, by its name
    def parts(url: pa.StringArray) -> Annotated[pa.Array, "ARRAY<STRING>"]                     the same; the type is Spark's DDL
    def scored(batch: pa.RecordBatch) -> pa.RecordBatch                                        `function = "scored"` of a step
    def scored(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]                  the same, called once per task

Annotations are read as text (`kind_of`), so that a file is checked without an import, and again as objects (`sql_type_of`).

The wrappers run in Spark's Python processes and check what a function returns: its class, its length, its type. Arrow casts a column to
the declared type if no value changes; text is never parsed, and nothing becomes text. An exception of the function gets a note about its
batch: the number of rows and, in a step that selects `_topic`, `_partition` and `_offset`, the position of the first row. Values are not
shown, since they may be private.

A step's function sees the rows of a task in batches of up to `spark.sql.execution.arrow.maxRecordsPerBatch` rows. It must not depend on
where a batch begins: a retried task may cut its rows differently.
"""

import ast
import inspect
import typing
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pyarrow as pa

#: row: called per row; columns: takes and returns arrays; batches: takes and returns record batches, for a step.
Kind = Literal["row", "columns", "batches"]

#: Spark's types by pyarrow's class of arrays.
ARRAYS: dict[Any, str] = {
    pa.StringArray: "STRING",
    pa.Int8Array: "TINYINT",
    pa.Int16Array: "SMALLINT",
    pa.Int32Array: "INT",
    pa.Int64Array: "BIGINT",
    pa.FloatArray: "FLOAT",
    pa.DoubleArray: "DOUBLE",
    pa.BooleanArray: "BOOLEAN",
    pa.BinaryArray: "BINARY",
    pa.Date32Array: "DATE",
    pa.TimestampArray: "TIMESTAMP",
}
UNTYPED = "returns pa.Array, which has no type; return pa.DoubleArray or the like, or Annotated[pa.Array, 'ARRAY<STRING>']"
#: The first words of a note about the batch of an exception.
NOTE = "In a batch of "
POSITION = ("_topic", "_partition", "_offset")


def kind_of(node: ast.FunctionDef) -> Kind:
    """The kind of a function by the text of its annotations. A decorated function has the kind of its decorator: row."""
    if node.decorator_list or node.returns is None:
        return "row"
    returns = ast.unparse(node.returns)
    if "RecordBatch" in returns:
        return "batches"
    words = returns.replace("[", " ").replace(",", " ").replace(".", " ").split()
    return "columns" if any(word.endswith("Array") for word in words) else "row"


def problem_of(node: ast.FunctionDef) -> str | None:
    """The defect of the annotations of a function, without an import."""
    if kind_of(node) == "batches" and len(node.args.args) != 1:
        return "takes record batches, so it has one parameter: a pa.RecordBatch, or an Iterator of them"
    if node.decorator_list or node.returns is None:
        return None
    return UNTYPED if ast.unparse(node.returns) in ("pa.Array", "pyarrow.Array") else None


def is_arrow(annotation: Any) -> bool:
    """Whether an annotation is an Arrow array."""
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = annotation.__origin__
    return isinstance(annotation, type) and issubclass(annotation, pa.Array | pa.ChunkedArray)


def sql_type_of(annotation: Any, of_values: Callable[[Any], str]) -> str:
    """Spark's type for the return annotation of a function of columns. `of_values`: for a Python type in Annotated.

    Raises: ValueError, which names the defect.
    """
    if annotation in ARRAYS:
        return ARRAYS[annotation]
    if typing.get_origin(annotation) is typing.Annotated:
        declared = annotation.__metadata__[0]
        return declared if isinstance(declared, str) else of_values(declared)
    if annotation is pa.Array:
        raise ValueError(UNTYPED)
    raise ValueError(f"{annotation} has no SQL type here; return pa.DoubleArray or the like, or Annotated[pa.Array, 'ARRAY<STRING>']")


def of_columns(function: Callable[..., Any], target: pa.DataType, where: str) -> Callable[..., Any]:
    """A function of columns that checks its result. `where`: the file and line of the function, with its name."""

    # Not functools.wraps: Spark reads the kind of function from these annotations.
    def checked(*columns: pa.Array) -> pa.Array:
        rows = len(columns[0])
        try:
            result = function(*columns)
        except Exception as error:
            error.add_note(f"{NOTE}{rows} rows")
            raise
        return checked_column(result, target, rows, where)

    return checked


def checked_column(result: Any, target: pa.DataType, rows: int, where: str) -> Any:
    """The result as an array of the type. Raises: ValueError."""
    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    if not isinstance(result, pa.Array):
        raise ValueError(f"{where} returned a {type(result).__name__}; return an Arrow array with a value for each row")
    if len(result) != rows:
        raise ValueError(f"{where} returned {len(result)} values for {rows} rows; return one for each row")
    return cast(result, target, where)


def of_batches(function: Callable[[Any], Any], schema: pa.Schema, where: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """A function for `mapInArrow` that checks what it returns. It calls `function` once per batch, or once if it takes an iterator."""
    takes_iterator = "RecordBatch" in str(_parameter(function)) and _parameter(function) is not pa.RecordBatch

    def checked(batches: Iterator[Any]) -> Iterator[Any]:
        #: The batch that the function has taken last.
        taken: list[Any] = []
        try:
            for result in _results(function, _noted(batches, taken), where, takes_iterator=takes_iterator):
                yield checked_batch(result, schema, where)
        except Exception as error:
            if taken:
                error.add_note(note_of(taken[0]))
            raise

    return checked


def _parameter(function: Any) -> Any:
    name = next(iter(inspect.signature(function).parameters))
    return typing.get_type_hints(function).get(name)


def _noted(batches: Iterator[Any], taken: list[Any]) -> Iterator[Any]:
    for batch in batches:
        taken[:] = [batch]
        yield batch


def _results(function: Callable[[Any], Any], batches: Iterator[Any], where: str, *, takes_iterator: bool) -> Iterator[Any]:
    if not takes_iterator:
        yield from map(function, batches)
        return
    results = function(batches)
    if not isinstance(results, Iterator):
        raise ValueError(f"{where} returned a {type(results).__name__}; return an iterator of record batches (yield each)")
    yield from results


def checked_batch(result: Any, schema: pa.Schema, where: str) -> Any:
    """The declared columns of a batch, in their order. Raises: ValueError."""
    if not isinstance(result, pa.RecordBatch):
        raise ValueError(f"{where} returned a {type(result).__name__}; return a pa.RecordBatch")
    names = result.schema.names
    if sorted(names) != sorted(schema.names):
        raise ValueError(f"{where} returned the columns {', '.join(names) or '(none)'}; the step declares {', '.join(schema.names)}")
    columns = [cast(result.column(field.name), field.type, f"{where}, column {field.name}:") for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def cast(column: Any, target: pa.DataType, where: str) -> Any:
    """The array in the declared type. Raises: ValueError if a value would change, or for text."""
    if column.type == target:
        return column
    if not pa.types.is_null(column.type) and _is_text(column.type) != _is_text(target):
        raise ValueError(f"{where} returned {column.type}; expected {target}")
    try:
        return column.cast(target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValueError(f"{where} returned {column.type}, which is not {target}: {type(error).__name__}") from None


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def note_of(batch: Any) -> str:
    """A note about a batch: its size, and the position of its first row if its columns have it."""
    note = f"{NOTE}{batch.num_rows} rows"
    if batch.num_rows and set(POSITION) <= set(batch.schema.names):
        topic, partition, offset = (batch.column(name)[0].as_py() for name in POSITION)
        note += f" that begins at {topic}-{partition}, offset {offset}"
    return note
