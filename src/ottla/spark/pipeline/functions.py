"""SQL functions from a Python module next to the pipeline file.

Every public function of the module becomes a SQL function with its name, called per row, with its annotated return type:

    def country(address: str) -> str | None: ...         country(host)
    def parts(url: str) -> dict[str, str]: ...           parts(url)['path']

    str STRING   int BIGINT   float DOUBLE   bool BOOLEAN   bytes BINARY   Decimal DECIMAL(38,18)   datetime TIMESTAMP   date DATE
    list[T] ARRAY<T>   dict[K, V] MAP<K, V>   a dataclass, NamedTuple or TypedDict STRUCT   T | None the same as T

A function of Arrow arrays is called per batch of rows, and one of record batches is for steps (arrow_functions.py).
Functions with PySpark's decorators (`udf`, `arrow_udf`, `udtf`) are registered unchanged. Functions are pickled to the executors with the
parts of the module that they use. The further files that the pipeline names are sent there too.
"""

import ast
import importlib.util
import inspect
import sys
import types
import typing
from dataclasses import fields, is_dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from ottla.spark.pipeline.arrow_functions import Kind, is_arrow, kind_of, of_batches, of_columns, problem_of, sql_type_of
from ottla.spark.pipeline.config.model import Functions, Pipeline, Step
from ottla.spark.pipeline.config.toml_table import PipelineError

PLAIN = {
    str: "STRING",
    int: "BIGINT",
    float: "DOUBLE",
    bool: "BOOLEAN",
    bytes: "BINARY",
    Decimal: "DECIMAL(38,18)",
    datetime: "TIMESTAMP",
    date: "DATE",
    timedelta: "INTERVAL DAY TO SECOND",
}

#: Function modules imported by this process, by name. Another pipeline's module with the same name replaces it.
_imported_modules: dict[str, types.ModuleType] = {}


class NoSqlType(ValueError):
    """An annotation without a Spark type."""


def names(functions: Functions) -> tuple[str, ...]:
    """The functions of SQL in the module's text, without an import. Raises: PipelineError for invalid Python."""
    return tuple(name for name, kind in kinds(functions).items() if kind != "batches")


def kinds(functions: Functions) -> dict[str, Kind]:
    """The public functions in the module's text by name, without an import. Raises: PipelineError for invalid Python."""
    tree = _parsed(functions.module)
    return {node.name: kind_of(node) for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")}


def check(functions: Functions) -> None:
    """Checks the module's text. Raises: PipelineError with a line of the module."""
    found = 0
    for node in _parsed(functions.module).body:
        if isinstance(node, ast.AsyncFunctionDef) and not node.name.startswith("_"):
            raise _error(functions.module, node.lineno, node.name, "is async; a SQL function must be a plain function")
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            found += isinstance(node, ast.ClassDef | ast.Assign)
            continue
        found += 1
        if node.returns is None and not node.decorator_list:
            raise _error(functions.module, node.lineno, node.name, f"has no return type; write def {node.name}(...) -> str:")
        if (problem := problem_of(node)) is not None:
            raise _error(functions.module, node.lineno, node.name, problem)
    if not found:
        raise _error(functions.module, 1, "", "has no public function")


def register(pipeline: Pipeline, session: Any) -> dict[str, str]:
    """Registers the module's functions in a session and its executors. Returns their types. Raises: PipelineError."""
    from pyspark import cloudpickle

    functions = pipeline.functions
    if functions is None:
        return {}
    check(functions)
    module = _imported(pipeline, functions)
    # By value: an import on an executor, without a session, fails for decorators with a type as text, and names could clash.
    cloudpickle.register_pickle_by_value(module)
    for path in functions.files:
        session.sparkContext.addPyFile(str(path.absolute()))
    made = {}
    batches = [name for name, kind in kinds(functions).items() if kind == "batches"]
    for name, value in vars(module).items():
        decorated = hasattr(value, "evalType") and hasattr(value, "returnType")
        own = inspect.isfunction(value) and value.__module__ == module.__name__
        if name.startswith("_") or not (decorated or own):
            continue
        if name in batches:
            made[name] = "BATCHES"
            continue
        _refuse_known(functions.module, name, session)
        if decorated:
            table = type(value).__name__ == "UserDefinedTableFunction"
            (session.udtf if table else session.udf).register(name, value)
            made[name] = "TABLE" if table else value.returnType.simpleString()
        else:
            made[name] = _registered(functions.module, name, value, session)
    return made


def _registered(path: Path, name: str, function: Any, session: Any) -> str:
    """Registers a function of rows or of columns. Returns its type."""
    kind, columns = _return_type(path, function)
    if not columns:
        session.udf.register(name, function, kind)
        return kind
    from pyspark.errors import ParseException
    from pyspark.sql.functions import arrow_udf
    from pyspark.sql.pandas.types import to_arrow_type

    line = function.__code__.co_firstlineno
    if not function.__code__.co_argcount and not function.__code__.co_flags & inspect.CO_VARARGS:
        raise _error(path, line, name, "takes no column, so it cannot know the number of rows; give it a parameter")
    try:
        parsed = spark_type(kind)
    except ParseException:
        raise _error(path, line, name, f"{kind!r} is not a type of Spark, such as ARRAY<STRING>") from None
    wrapped = of_columns(function, to_arrow_type(parsed, timezone="UTC"), f"{path}:{line}: {name}")
    session.udf.register(name, arrow_udf(wrapped, parsed))
    return kind


def spark_type(ddl: str) -> Any:
    """Spark's type for a DDL text. Raises: ParseException. Needs a session."""
    from pyspark.sql.types import _parse_datatype_string

    return _parse_datatype_string(ddl)


def batch_function(pipeline: Pipeline, step: Step) -> tuple[Any, str]:
    """The function of a step, for `mapInArrow`, and the DDL of its columns. After `register`. Raises: PipelineError."""
    from pyspark.errors import ParseException
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    assert pipeline.functions is not None and step.function is not None and step.columns is not None, "checked with the file"
    function = getattr(_imported_modules[pipeline.functions.module.stem], step.function)
    prefix = step.prefix
    try:
        declared = spark_type(step.columns)
    except ParseException as error:
        raise pipeline.error(f"{prefix}columns", f"is not Spark's DDL of columns: {error.getCondition()}") from None
    if not isinstance(declared, StructType):
        raise pipeline.error(f"{prefix}columns", f'expected columns, such as "id STRING, score DOUBLE", not {step.columns!r}')
    where = f"{pipeline.functions.module}:{function.__code__.co_firstlineno}: {step.function}"
    return of_batches(function, to_arrow_schema(declared, timezone="UTC"), where), step.columns


def _refuse_known(path: Path, name: str, session: Any) -> None:
    """Raises: PipelineError if Spark has a function with the name, because Spark would call its own."""
    catalyst = session._jvm.org.apache.spark.sql.catalyst
    identifier = catalyst.FunctionIdentifier(name)
    known = (catalyst.analysis.FunctionRegistry.builtin(), catalyst.analysis.TableFunctionRegistry.builtin())
    if any(registry.functionExists(identifier) for registry in known):
        lines = [node.lineno for node in _parsed(path).body if isinstance(node, ast.FunctionDef) and node.name == name]
        raise _error(
            path, lines[0] if lines else 1, name, f"is also a function of Spark, which takes precedence; choose another name than {name}"
        )


def sql_type(annotation: Any) -> str:
    """Spark's type for a Python annotation. Raises: NoSqlType."""
    if annotation in PLAIN:
        return PLAIN[annotation]
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        chosen = [one for one in inner if one is not type(None)]
        if len(chosen) == 1:
            return sql_type(chosen[0])
    if origin is list and len(inner) == 1:
        return f"ARRAY<{sql_type(inner[0])}>"
    if origin is dict and len(inner) == 2:
        return f"MAP<{sql_type(inner[0])}, {sql_type(inner[1])}>"
    members = _members(annotation)
    if members:
        return f"STRUCT<{', '.join(f'`{name}`: {sql_type(kind)}' for name, kind in members.items())}>"
    raise NoSqlType(annotation.__name__ if isinstance(annotation, type) else str(annotation))


def _members(annotation: Any) -> dict[str, Any]:
    """Names and types of the fields of a struct."""
    if is_dataclass(annotation) and isinstance(annotation, type):
        hints = typing.get_type_hints(annotation)
        return {field.name: hints[field.name] for field in fields(annotation)}
    if isinstance(annotation, type) and (hasattr(annotation, "_fields") or typing.is_typeddict(annotation)):
        return typing.get_type_hints(annotation)
    return {}


def _return_type(path: Path, function: Any) -> tuple[str, bool]:
    """The type that a function returns, and whether it returns it as an Arrow array."""
    line = function.__code__.co_firstlineno
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise _error(path, line, function.__name__, f"an annotation cannot be read: {error}") from None
    returns = hints.pop("return", type(None))
    if returns is type(None):
        raise _error(path, line, function.__name__, f"has no return type; write def {function.__name__}(...) -> str:")
    if is_arrow(returns):
        rows = [name for name, hint in hints.items() if not is_arrow(hint)]
        if rows:
            raise _error(path, line, function.__name__, f"returns an Arrow array, so {rows[0]} is one too; write {rows[0]}: pa.Array")
        try:
            return sql_type_of(returns, sql_type), True
        except ValueError as error:
            raise _error(path, line, function.__name__, str(error)) from None
    try:
        return sql_type(returns), False
    except NoSqlType as error:
        known = "str, int, float, bool, bytes, Decimal, datetime, date, list[...], dict[...] or a dataclass of these"
        raise _error(path, line, function.__name__, f"{error} has no SQL type; return {known}") from None


def _imported(pipeline: Pipeline, functions: Functions) -> types.ModuleType:
    path, name = functions.module, functions.module.stem
    existing = sys.modules.get(name)
    if existing is not None and existing is _imported_modules.get(name):
        del sys.modules[name]
    elif existing is not None or name in sys.stdlib_module_names:
        raise pipeline.error("functions.module", f"there is another Python module named {name}; rename the file")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, "a file that ends with .py"
    module = importlib.util.module_from_spec(spec)
    # Before its code runs, since pickles and annotations look the module up.
    sys.modules[name] = _imported_modules[name] = module
    beside = {str(file.parent) for file in (path, *functions.files)}
    sys.path[:0] = beside
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        line = _line_in(error, path)
        raise _error(path, line, "", f"{type(error).__name__}: {error}") from error
    finally:
        sys.path[:] = [entry for entry in sys.path if entry not in beside]
    return module


def _line_in(error: BaseException, path: Path) -> int:
    """The line of the module at which an error was raised."""
    line, frame = 1, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == str(path):
            line = frame.tb_lineno
        frame = frame.tb_next
    return line


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), filename=str(path))
    except SyntaxError as error:
        raise _error(path, error.lineno or 1, "", f"is not Python: {error.msg}") from None


def _error(path: Path, line: int, name: str, problem: str) -> PipelineError:
    return PipelineError(f"{path}:{line}", name, problem)
