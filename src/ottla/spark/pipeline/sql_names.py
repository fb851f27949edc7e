"""Resolves the tables and columns of a query by name, without Spark: sqlglot parses it, and names are looked up in the columns of views.

It reports only what Spark certainly refuses. A name is not judged where the columns of a table in the same FROM are not all known:

    known      sources and steps with known columns, common table expressions, derived tables, LATERAL VIEW and VALUES with column names
    unknown    table functions, files named in the SQL, PIVOT, the result of `struct.*` or of a generator, steps that have such columns

Functions and types are left to Spark. A name without a table may be a column, a field's struct, an alias of the same
SELECT, a parameter of a lambda, a column of an outer query, or one of `SPECIAL`. Names are compared without case, Spark's default.

Spark numbers columns without a name by their text, such as `count(1)`. They have the name None here, and only names that could be theirs
are not judged.
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError, TokenError

# Its warnings are about statements that are no queries.
logging.getLogger("sqlglot").setLevel(logging.ERROR)
#: sqlglot takes `window` after GROUP BY for the keyword. The other name has the same length, so that positions stay.
WINDOW = re.compile(r"\bwindow(?=\s*\()", re.IGNORECASE)
WINDOW_ALIAS = "windov"
#: Names that Spark resolves without a column.
SPECIAL = frozenset((
    "_metadata", "grouping__id", "spark_grouping_id", "current_date", "current_timestamp", "current_user", "current_time",
    "current_catalog", "current_database", "current_schema", "current_timezone", "localtime", "localtimestamp", "now",
    "session_user", "user", "default", "year", "years", "yyyy", "yy", "quarter", "month", "months", "mon", "mm", "week", "weeks",
    "day", "days", "dayofyear", "hour", "hours", "minute", "minutes", "second", "seconds", "millisecond", "milliseconds",
    "microsecond", "microseconds",
))  # fmt: skip
#: Their result has no column, several, or one with another name than their text.
GENERATORS = ("explode", "posexplode", "inline", "stack", "json_tuple")
#: The parts of a SELECT that come after its result.
AFTER = ("group", "having", "order", "sort", "cluster", "distribute", "qualify", "windows")
PLAIN_NAME = re.compile(r"\w+")
#: SQL that Spark accepts and sqlglot 30 may not parse: a syntax error beside it is left to Spark.
LEFT_TO_SPARK = re.compile(
    r"\|>|>>>|(?<!:):(?!:)|\bTABLE\s+\w|\bUSING\s+''|\bUNPIVOT\b|\bTABLESAMPLE\b|\bIDENTIFIER\s*\(|\bCOLLATE\b|\b[xr]\s*''"
    r"|\bFOR\s+(?:SYSTEM_)?(?:VERSION|TIMESTAMP)\b|\bRECURSIVE\b|\bMATCH_RECOGNIZE\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class OutColumn:
    """A column of a view or a query."""

    #: None: Spark names it after its expression.
    name: str | None
    #: Spark's type in lower case; None: not known.
    type: str | None = None


#: The columns of a view or a query; None: not all known.
Columns = tuple[OutColumn, ...] | None


@dataclass(frozen=True, slots=True)
class Finding:
    """A name that Spark refuses."""

    #: Of its first character in the SQL.
    index: int
    name: str
    #: column, view, or syntax (the name is the message).
    kind: str
    #: For a column: the tables in question with their columns.
    tables: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueryNames:
    """What a query's names say."""

    columns: Columns
    #: The first name that Spark refuses.
    finding: Finding | None = None
    #: Views that it reads, in the order of their first use.
    reads: tuple[str, ...] = ()
    #: The expressions of GROUP BY as text; None: no aggregate.
    groups_by: str | None = None
    #: Whether rows are aggregated; None: depends on a function that sqlglot does not know.
    aggregates: bool | None = False
    #: Whether two or more tables are joined.
    joins: bool = False
    #: Why the query was not judged.
    unparsed: str | None = None


def resolve(sql: str, views: Mapping[str, Columns], *, open_catalog: bool = False, scalar: Sequence[str] = ()) -> QueryNames:
    """Resolves a query over `views`.

    `open_catalog`: there may be other tables. `scalar`: functions that are known not to aggregate.
    """
    try:
        tree = _parsed(sql)
    except (ParseError, TokenError) as error:
        return _unparsed(sql, error)
    except (SqlglotError, RecursionError) as error:
        return QueryNames(None, unparsed=f"{type(error).__name__}: {error}")
    if not isinstance(tree, exp.Query | exp.Values) or "|>" in sql:
        return QueryNames(None, unparsed="this form of a query is left to Spark")
    resolver = _Resolver(sql, views, open_catalog)
    columns = resolver.query(tree, (), {})
    select = tree.find(exp.Select)
    grouped = list(tree.find_all(exp.Group))
    by = ", ".join(_text(one) for group in grouped for one in group.expressions) if grouped else None
    aggregates = _aggregates(tree, {name.lower() for name in scalar})
    return QueryNames(
        columns,
        min(resolver.findings, key=lambda one: one.index, default=None),
        tuple(dict.fromkeys(resolver.reads)),
        by if by is not None else ("" if aggregates and select is not None else None),
        aggregates,
        bool(select is not None and any(True for _ in tree.find_all(exp.Join))),
    )


def resolve_expression(sql: str, view: str, columns: Columns) -> Finding | None:
    """The first name in an expression that Spark refuses, with its index in `sql`."""
    if columns is None:
        return None
    around = "SELECT "
    found = resolve(f"{around}{sql} FROM {view}", {view: columns}).finding
    # The syntax of an expression is Spark's to judge: a broken one may change the query around it.
    return None if found is None or found.kind == "syntax" else Finding(found.index - len(around), found.name, found.kind, found.tables)


def ddl_columns(ddl: str) -> Columns:
    """The columns of Spark's DDL, such as ``user STRING, n BIGINT``; None if sqlglot does not read it."""
    ddl = re.sub(r"^\s*struct\s*<(.*)>\s*$", r"\1", ddl, flags=re.IGNORECASE | re.DOTALL)
    try:
        kind = sqlglot.parse_one(f"CAST(x AS STRUCT<{ddl}>)", dialect="spark").args.get("to")
    except (ParseError, TokenError):
        return None
    if kind is None or not kind.expressions or not all(isinstance(one, exp.ColumnDef) for one in kind.expressions):
        return None
    return tuple(OutColumn(one.name, _type(one.args.get("kind"))) for one in kind.expressions)


def _parsed(sql: str) -> exp.Expr:
    return sqlglot.parse_one(WINDOW.sub(WINDOW_ALIAS, sql), dialect="spark")


def _unparsed(sql: str, error: ParseError | TokenError) -> QueryNames:
    """A syntax error, unless the SQL has something that sqlglot may not know."""
    plain = re.sub(r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", "''", sql, flags=re.DOTALL)
    details = getattr(error, "errors", None) or [{}]
    line, column, token = details[0].get("line"), details[0].get("col"), details[0].get("highlight") or ""
    if LEFT_TO_SPARK.search(plain) or line is None or column is None:
        quotes = _open_quote(sql)
        if quotes is not None:
            return QueryNames(None, Finding(quotes, f"a text begins here with {sql[quotes]} and does not end", "syntax"))
        return QueryNames(None, unparsed="its syntax is left to Spark")
    lines = sql.split("\n")
    # sqlglot counts columns up to the end of the token.
    index = sum(len(one) + 1 for one in lines[: line - 1]) + max(0, column - len(token))
    near = token.strip() or "the end of the query"
    shown = f"'{near}'" if token.strip() else near
    return QueryNames(
        None, Finding(min(index, len(sql)), f"syntax error at {shown}: {details[0].get('description', '').rstrip('.')}", "syntax")
    )


def _open_quote(sql: str) -> int | None:
    """The index of a quote that is not closed."""
    for match in re.finditer(r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`(?:[^`]|``)*`|['\"`]", sql, re.DOTALL):
        if match[0] in ("'", '"', "`"):
            return match.start()
    return None


def _text(node: exp.Expr) -> str:
    return node.sql(dialect="spark").replace(WINDOW_ALIAS.upper(), "window").replace(WINDOW_ALIAS, "window").replace("`", "")


def _type(kind: exp.Expr | None) -> str | None:
    return None if kind is None else kind.sql(dialect="spark").lower()


def _aggregates(tree: exp.Expr, scalar: set[str]) -> bool | None:
    """Whether the query aggregates rows anywhere; None if only a function that sqlglot does not know could do it."""
    unknown = False
    for node in tree.walk():
        if isinstance(node, exp.Group | exp.Distinct):
            return True
        if isinstance(node, exp.AggFunc) and not isinstance(node.parent, exp.Window | exp.Filter | exp.IgnoreNulls):
            return True
        if isinstance(node, exp.Anonymous) and node.name.lower() not in scalar | {WINDOW_ALIAS, "session_window"}:
            unknown = True
    return None if unknown else False


@dataclass(frozen=True, slots=True)
class _Scope:
    """The tables of one SELECT, by their names in lower case, and other names that an expression of it may use."""

    tables: Mapping[str, tuple[str, Columns]]
    #: A table without a name, or one whose name is not known, is there too.
    is_open: bool
    others: frozenset[str] = frozenset()

    @property
    def is_known(self) -> bool:
        return not self.is_open and all(columns is not None for _, columns in self.tables.values())

    def has(self, name: str) -> bool:
        return name in self.others or any(_has(columns, name) for _, columns in self.tables.values())


def _has(columns: Columns, name: str) -> bool:
    return columns is None or any((one.name or "").lower() == name for one in columns) or _may_be_text(columns, name)


def _may_be_text(columns: Sequence[OutColumn], name: str) -> bool:
    """Whether a name could be the text of an expression without a name."""
    return PLAIN_NAME.fullmatch(name) is None and any(one.name is None for one in columns)


class _Resolver:
    """Walks a query from the inside of its FROM outwards, and collects findings."""

    def __init__(self, sql: str, views: Mapping[str, Columns], open_catalog: bool) -> None:
        self.views = {name.lower(): (name, columns) for name, columns in views.items()}
        self.open_catalog = open_catalog
        self.windows = frozenset(name for name in ("window", "session_window") if re.search(rf"\b{name}\s*\(", sql, re.IGNORECASE))
        self.findings: list[Finding] = []
        self.reads: list[str] = []

    def query(self, node: exp.Expr, outer: tuple[_Scope, ...], ctes: Mapping[str, Columns]) -> Columns:
        """The columns of a query. `outer`: scopes of queries around it, the nearest first."""
        ctes = self._with_ctes(node, outer, ctes)
        if isinstance(node, exp.Select):
            return self._select(node, outer, ctes)
        if isinstance(node, exp.SetOperation):
            left = self.query(node.left, outer, ctes)
            self.query(node.right, outer, ctes)
            return None if node.args.get("by_name") else left
        if isinstance(node, exp.Subquery):
            inner = node.this
            if not isinstance(inner, exp.Query | exp.Values) or node.args.get("pivots") or node.args.get("joins"):
                return None
            return _renamed(self.query(inner, outer, ctes), node.args.get("alias"))
        return None

    def _with_ctes(self, node: exp.Expr, outer: tuple[_Scope, ...], ctes: Mapping[str, Columns]) -> Mapping[str, Columns]:
        with_ = node.args.get("with_") or node.args.get("with")
        if with_ is None:
            return ctes
        made = dict(ctes)
        for cte in with_.expressions:
            if with_.args.get("recursive"):
                made[cte.alias.lower()] = None
            else:
                made[cte.alias.lower()] = _renamed(self.query(cte.this, outer, made), cte.args.get("alias"))
        return made

    def _select(self, select: exp.Select, outer: tuple[_Scope, ...], ctes: Mapping[str, Columns]) -> Columns:
        tables: dict[str, tuple[str, Columns]] = {}
        is_open, done = False, set()
        for source in _sources(select):
            done.add(id(source))
            name, columns = self._source(source, (_Scope(dict(tables), is_open), *outer), outer, ctes)
            is_open = is_open or name is None or name.lower() in tables
            if name is not None:
                tables[name.lower()] = (name, columns)
        # An expression may use an alias of the same SELECT; GROUP BY, HAVING and ORDER BY know all columns of the result.
        aliases = frozenset(one.alias.lower() for one in select.expressions if isinstance(one, exp.Alias))
        results = frozenset(one.output_name.lower() for one in select.expressions)
        within, after = _Scope(tables, is_open, aliases), _Scope(tables, is_open, results)
        for key, child in _children(select):
            scopes = (after if key in AFTER else within, *outer)
            for column in self._own(child, done, scopes, ctes) if key not in ("with_", "with") else ():
                self._check(column, scopes)
        return _outputs(select, within)

    def _source(
        self, source: exp.Expr, lateral: tuple[_Scope, ...], outer: tuple[_Scope, ...], ctes: Mapping[str, Columns]
    ) -> tuple[str | None, Columns]:
        """The name of a table in FROM and its columns."""
        alias = source.args.get("alias")
        name = source.alias_or_name or None
        if source.args.get("pivots") or source.args.get("joins"):
            self._reads_of(source)
            return None, None
        if isinstance(source, exp.Subquery):
            return name, self.query(source, outer, ctes)
        if isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier) and not source.db:
            return name, _renamed(self._table(source.this, ctes), alias)
        if isinstance(source, exp.Values | exp.Lateral | exp.Unnest):
            if isinstance(source.this, exp.Subquery):
                return name, self.query(source.this, lateral, ctes)
            names = [one.name for one in alias.args.get("columns") or ()] if alias is not None else []
            return name, tuple(map(OutColumn, names)) if names else None
        return name, None

    def _reads_of(self, source: exp.Expr) -> None:
        for table in source.find_all(exp.Table):
            if table.name.lower() in self.views and not table.db:
                self.reads.append(self.views[table.name.lower()][0])

    def _table(self, identifier: exp.Identifier, ctes: Mapping[str, Columns]) -> Columns:
        name = identifier.name.lower()
        if name in ctes:
            return ctes[name]
        if name in self.views:
            self.reads.append(self.views[name][0])
            return self.views[name][1]
        if not self.open_catalog:
            self._found(identifier, identifier.name, "view", {})
        return None

    def _own(self, part: exp.Expr, done: set[int], scopes: tuple[_Scope, ...], ctes: Mapping[str, Columns]) -> Iterator[exp.Column]:
        """The columns in a part of a SELECT. Resolves the queries in it."""
        pending = [part]
        while pending:
            node = pending.pop()
            if id(node) in done and not isinstance(node, exp.Lateral | exp.Values):
                continue
            if isinstance(node, exp.Query):
                self.query(node, scopes, ctes)
            elif isinstance(node, exp.Column):
                yield node
            else:
                pending += [child for _, child in _children(node)]

    def _check(self, column: exp.Column, scopes: tuple[_Scope, ...]) -> None:
        first, *rest = column.parts
        name = first.name.lower()
        if isinstance(first, exp.Star) or name in SPECIAL or name in self.windows or not isinstance(first, exp.Identifier):
            return
        if _is_lambda_parameter(column, name):
            return
        for scope in scopes:
            if rest and name in scope.tables:
                called, columns = scope.tables[name]
                if isinstance(rest[0], exp.Identifier) and not _has(columns, rest[0].name.lower()):
                    self._found(first, f"{first.name}.{rest[0].name}", "column", {called: _names(columns)})
                return
            if scope.has(name) or not scope.is_known:
                return
        tables = {called: _names(columns) for called, columns in scopes[0].tables.values()}
        self._found(first, ".".join(part.name for part in column.parts), "column", tables)

    def _found(self, at: exp.Expr, name: str, kind: str, tables: Mapping[str, Sequence[str]]) -> None:
        index = at.meta.get("start")
        if index is not None:
            self.findings.append(Finding(int(index), name, kind, tables))


def _names(columns: Columns) -> list[str]:
    return [one.name for one in columns or () if one.name is not None]


def _children(node: exp.Expr) -> Iterator[tuple[str, exp.Expr]]:
    for key, value in node.args.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, exp.Expr):
                yield key, one


def _sources(select: exp.Select) -> Iterator[exp.Expr]:
    """The tables of FROM, JOIN and LATERAL VIEW, in this order."""
    from_ = select.args.get("from_") or select.args.get("from")
    if from_ is not None:
        yield from_.this
    for join in select.args.get("joins") or ():
        yield join.this
    yield from select.args.get("laterals") or ()


def _renamed(columns: Columns, alias: exp.Expr | None) -> Columns:
    """The columns with the names of ``AS t(a, b)``."""
    names = [one.name for one in alias.args.get("columns") or ()] if isinstance(alias, exp.TableAlias) else []
    if not names:
        return columns
    return tuple(OutColumn(name, one.type) for name, one in zip(names, columns or [OutColumn(None)] * len(names), strict=False))


def _is_lambda_parameter(column: exp.Column, name: str) -> bool:
    around: exp.Expr | None = column.find_ancestor(exp.Lambda)
    while around is not None:
        if any(one.name.lower() == name for one in around.expressions):
            return True
        around = around.find_ancestor(exp.Lambda)
    return False


def _outputs(select: exp.Select, scope: _Scope) -> Columns:
    """The columns of a SELECT's result; None if a part is not known."""
    found: list[OutColumn] = []
    for one in select.expressions:
        columns = _output(one, select, scope)
        if columns is None:
            return None
        found += columns
    return None if select.args.get("kind") else tuple(found)


def _output(one: exp.Expr, select: exp.Select, scope: _Scope) -> list[OutColumn] | None:
    match one:
        case exp.Star():
            return _starred(one, select, scope, None)
        case exp.Column() if isinstance(one.this, exp.Star):
            return _starred(one.this, select, scope, one.table.lower()) if one.table.lower() in scope.tables else None
        case exp.Alias():
            inner = one.this
            return [OutColumn(one.alias, _type_of(inner, scope))]
        case exp.Aliases():
            return [OutColumn(name.name) for name in one.expressions]
        case exp.Column():
            return [OutColumn(one.name, _type_of(one, scope))]
        case exp.Dot() if isinstance(one.expression, exp.Identifier):
            return [OutColumn(one.expression.name)]
        case exp.Paren() | exp.Literal() | exp.Boolean() | exp.Null() | exp.Subquery() | exp.Neg():
            return None
    name = one.name.lower() if isinstance(one, exp.Anonymous) else one.key
    if name in (WINDOW_ALIAS, "session_window"):
        return [OutColumn("window" if name == WINDOW_ALIAS else name)]
    generator = isinstance(one, exp.UDTF | exp.Explode) or any(name.startswith(known) for known in GENERATORS)
    return None if generator else [OutColumn(None, _type_of(one, scope))]


def _starred(star: exp.Expr, select: exp.Select, scope: _Scope, table: str | None) -> list[OutColumn] | None:
    """The columns of ``*`` or ``table.*``, without those of EXCEPT, and with the columns of USING once."""
    if not scope.is_known or star.args.get("replace") or star.args.get("rename"):
        return None
    except_ = star.args.get("except_") or star.args.get("except") or ()
    left_out = {one.name.lower() for one in except_}
    joins = select.args.get("joins") or ()
    if any(join.args.get("kind") in ("SEMI", "ANTI") or join.args.get("method") == "NATURAL" for join in joins):
        return None
    merged = {name.name.lower() for join in joins for name in join.args.get("using") or ()}
    found: list[OutColumn] = []
    seen: set[str] = set()
    for key, (_, columns) in scope.tables.items():
        if table in (None, key):
            for column in columns or ():
                name = (column.name or "").lower()
                if name in left_out or (table is None and name in merged and name in seen):
                    continue
                seen.add(name)
                found.append(column)
    return found


def _type_of(node: exp.Expr, scope: _Scope) -> str | None:
    """The type of a column that is passed on or cast."""
    if isinstance(node, exp.Cast):
        return _type(node.args.get("to"))
    if not isinstance(node, exp.Column) or len(node.parts) > 2:
        return None
    tables = [columns for key, (_, columns) in scope.tables.items() if node.table.lower() in ("", key)]
    types = {one.type for columns in tables for one in columns or () if (one.name or "").lower() == node.name.lower()}
    return types.pop() if len(types) == 1 else None
