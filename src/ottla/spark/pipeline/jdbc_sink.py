"""Writes to a table of a database, with the user's JDBC driver (`[spark] jars`) and Spark's JDBC writer.

    append   tasks insert in parallel, each in its own transaction: at least once. A retried batch is inserted again, and a failed one
             leaves rows; if that matters, use merge
    merge    tasks fill a staging table; then one transaction deletes the rows with the same keys and inserts the batch. The table changes
             by whole batches, and a retried batch has the same result

The staging table is named after the table and the sink, recreated for each batch, and not dropped. The merge uses standard SQL, with names
quoted for the database. Spark maps text to a type that some databases cannot compare: a text key then needs
`options = { createTableColumnTypes = "user VARCHAR(100)" }`, or an existing table.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import Observation
from pyspark.sql.functions import count, lit

from ottla.lake.table.delta import ONE_PER_KEY, RepeatedKeys
from ottla.spark.pipeline.config.model import Sink

#: Options for Spark; all others are for the driver.
OF_SPARK = frozenset(
    name.lower()
    for name in (
        "batchsize",
        "cascadeTruncate",
        "createTableColumnTypes",
        "createTableOptions",
        "isolationLevel",
        "numPartitions",
        "queryTimeout",
        "sessionInitStatement",
        "truncate",
    )
)


def suffixed(table: str, suffix: str) -> str:
    """A table's name, which may be quoted, with a suffix."""
    return f"{table[:-1]}{suffix}{table[-1]}" if table[-1] in '"`]' else f"{table}{suffix}"


class JdbcTable:
    """One table in one database. `owner` identifies the pipeline."""

    def __init__(self, sink: Sink, session: Any, owner: str) -> None:
        self.sink = sink
        self.session = session
        assert sink.url and sink.table and sink.driver, "checked with the file"
        self._options = {"url": sink.url, "driver": sink.driver, **sink.options}
        # Unique per pipeline and sink: with a shared one they would merge each other's rows.
        self.staging = suffixed(sink.table, f"_ottla_{hashlib.sha256(f'{owner}/{sink.key}'.encode()).hexdigest()[:8]}")
        self._made = False

    def write(self, frame: Any) -> int:
        """Writes a batch. Returns the number of rows."""
        counted = Observation()
        observed = frame.observe(counted, count(lit(1)).alias("rows"))
        if self.sink.mode == "append":
            self._save(observed, self.sink.table, "append")
        else:
            if not self._made:
                self._save(frame.limit(0), self.sink.table, "append")
                self._made = True
            self._save(observed, self.staging, "overwrite")
            self._merge(frame.columns)
        return int(counted.get["rows"])

    def _save(self, frame: Any, table: str | None, mode: str) -> None:
        frame.write.format("jdbc").options(**self._options, dbtable=table).mode(mode).save()

    def _merge(self, columns: Sequence[str]) -> None:
        jvm = self.session._jvm
        quoted = jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(self.sink.url).quoteIdentifier
        names = ", ".join(quoted(column) for column in columns)
        table, staging = self.sink.table, self.staging
        pairs = [(f"{table}.{quoted(key)}", f"{staging}.{quoted(key)}") for key in self.sink.keys]
        same = " AND ".join(f"({old} = {new} OR ({old} IS NULL AND {new} IS NULL))" for old, new in pairs)
        connection = self._connect(jvm)
        try:
            connection.setAutoCommit(False)
            statement = connection.createStatement()
            named = ", ".join(quoted(key) for key in self.sink.keys)
            if statement.executeQuery(f"SELECT {named} FROM {staging} GROUP BY {named} HAVING count(*) > 1").next():
                raise RepeatedKeys(f"a batch has several rows with the same {', '.join(self.sink.keys)}; {ONE_PER_KEY}")
            statement.executeUpdate(f"DELETE FROM {table} WHERE EXISTS (SELECT 1 FROM {staging} WHERE {same})")
            statement.executeUpdate(f"INSERT INTO {table} ({names}) SELECT {names} FROM {staging}")
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
        finally:
            connection.close()

    def _connect(self, jvm: Any) -> Any:
        """A connection from the driver class: java.sql.DriverManager does not see drivers in jars that were added to Spark."""
        properties = jvm.java.util.Properties()
        for name, value in self.sink.options.items():
            if name.lower() not in OF_SPARK:
                properties.setProperty(name, value)
        return self._driver(jvm).newInstance().connect(self.sink.url, properties)

    def has_driver(self) -> bool:
        """Whether the driver's class exists, in a named jar or in Spark."""
        try:
            self._driver(self.session._jvm)
        except Py4JJavaError:
            return False
        return True

    def _driver(self, jvm: Any) -> Any:
        return jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(self.sink.driver)
