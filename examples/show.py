"""Prints a table or the result of a query: ``python examples/show.py TABLE [SQL]``. In the SQL the table is called `t`.

TABLE is a Delta table, or a directory of Parquet files, which does not support SQL.
"""

import sys
from pathlib import Path

from deltalake import DeltaTable, QueryBuilder
from rich.console import Console
from rich.table import Table
from rich.text import Text


def main() -> None:
    path, query = sys.argv[1], (sys.argv[2:] or ["SELECT * FROM t"])[0]
    if (Path(path) / "_delta_log").is_dir():
        rows = QueryBuilder().register("t", DeltaTable(path)).execute(query).read_all()
    else:
        from pyarrow.dataset import dataset

        rows = dataset(path, format="parquet").to_table()
    # As Text, since rich interprets square brackets in a str as markup.
    shown = Table(box=None, header_style="bold")
    for name in rows.schema.names:
        shown.add_column(Text(name))
    columns = [[Text(str(value.as_py())) for value in rows.column(name)] for name in rows.schema.names]
    for row in zip(*columns, strict=True):
        shown.add_row(*row)
    Console(width=max(80, Console().width)).print(shown)


if __name__ == "__main__":
    main()
