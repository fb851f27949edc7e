"""A table of a database, through a JDBC driver that the user brings (`[spark] jars`) and Spark's own JDBC writer.

    append   tasks insert side by side, each in a transaction of its own: at least once. A batch that is run again is inserted again, and
             one that fails in the middle leaves rows; where that matters take merge
    merge    tasks fill a staging table, then one transaction deletes the rows with the same keys and inserts those of the batch: the table
             changes by whole batches, and a batch that is run again comes to the same

The staging table is named after the table and the sink; it is made anew for each batch and stays between them. Plain SQL that every
database has does the merge; names are quoted as Spark quotes them for the database. Spark makes text a type that some databases cannot
compare: there a key that is text needs `options = { createTableColumnTypes = "user VARCHAR(100)" }`, or a table made beforehand.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

from ottla.lake.table.delta import ONE_PER_KEY, RepeatedKeys
from ottla.spark.pipeline.config.model import Sink

#: Options that are Spark's; the others are the driver's.
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


def beside(table: str, suffix: str) -> str:
    """The name of a table beside another, whose name may be quoted."""
    return f"{table[:-1]}{suffix}{table[-1]}" if table[-1] in '"`]' else f"{table}{suffix}"


class JdbcTable:
    """One table in one database. `owner` tells the pipeline from all others."""

    def __init__(self, sink: Sink, session: Any, owner: str) -> None:
        self.sink = sink
        self.session = session
        assert sink.url and sink.table and sink.driver, "checked with the file"
        self._options = {"url": sink.url, "driver": sink.driver, **sink.options}
        # One of its own for each pipeline and sink: two that shared it would merge each other's rows.
        self.staging = beside(sink.table, f"_ottla_{hashlib.sha256(f'{owner}/{sink.key}'.encode()).hexdigest()[:8]}")
        self._made = False

    def write(self, frame: Any) -> int:
        """Writes a batch; the number of rows."""
        from pyspark.sql import Observation
        from pyspark.sql.functions import count, lit

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
        same = " AND ".join(f"({there} = {here} OR ({there} IS NULL AND {here} IS NULL))" for there, here in pairs)
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
        """A connection of the driver itself: java.sql.DriverManager does not see drivers from jars that were added to Spark."""
        properties = jvm.java.util.Properties()
        for name, value in self.sink.options.items():
            if name.lower() not in OF_SPARK:
                properties.setProperty(name, value)
        return self._driver(jvm).newInstance().connect(self.sink.url, properties)

    def has_driver(self) -> bool:
        """Whether the driver's class is there, in a jar that was named or in Spark's own."""
        from py4j.protocol import Py4JJavaError

        try:
            self._driver(self.session._jvm)
        except Py4JJavaError:
            return False
        return True

    def _driver(self, jvm: Any) -> Any:
        return jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(self.sink.driver)
