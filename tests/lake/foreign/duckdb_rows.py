"""DuckDB with its extensions of PyPI's packages: writes the rows of a query to a file in Arrow's format. Arguments: the query, the file.

An extension of PyPI is a file in a package of its own; LOAD by name would look for it where INSTALL puts it.
"""

import importlib
import sys
from pathlib import Path

import duckdb
import pyarrow as pa

query, file = sys.argv[1:]
database = duckdb.connect(config={"autoinstall_known_extensions": "false"})
for name in ("avro", "iceberg"):
    package = importlib.import_module(f"duckdb_extension_{name}")
    assert package.__file__ is not None
    (extension,) = (Path(package.__file__).parent / "extensions" / f"v{duckdb.__version__}").glob("*.duckdb_extension")
    database.execute(f"LOAD '{extension}'")
database.execute("SET TimeZone = 'UTC'")
rows: pa.Table = database.sql(query).to_arrow_table()
with pa.ipc.new_file(file, rows.schema) as writer:
    writer.write_table(rows)
