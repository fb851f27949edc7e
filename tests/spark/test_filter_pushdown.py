"""Filter pushdown of Spark's Python sources: why ``format("ottla")`` leaves it alone."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, InputPartition

from .conftest import Topic

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

ENABLED = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def pushing(spark: Any) -> Iterator[Any]:
    """A session of its own with filter pushdown."""
    session = spark.newSession()
    session.conf.set(ENABLED, "true")
    yield session


def test_a_frame_that_is_used_twice_has_all_rows_with_filter_pushdown_enabled(pushing: Any, a_topic: Callable[..., Topic]) -> None:
    topic = a_topic(partitions=2)
    topic.add(b"a", b"b", partition=0)
    topic.add(b"c", partition=1)
    frame = topic.source(pushing.read).load()
    assert [frame.where("partition = 1").count(), frame.where("partition = 0 AND offset >= 1").count(), frame.count()] == [1, 1, 3]


def test_spark_still_applies_a_pushed_filter_to_other_queries_of_the_same_frame(pushing: Any) -> None:
    """If this fails, Spark is mended: `format("ottla")` can then narrow its ranges by pushed filters (docs/requests-to-spark.md)."""

    class Reader(DataSourceReader):  # type: ignore[misc]
        numbers = range(10)

        def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
            for one in filters:
                if isinstance(one, EqualTo):
                    self.numbers = range(one.value, one.value + 1)
                else:
                    yield one

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(self.numbers)]

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            return ((number,) for number in partition.value)

    class Ten(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return "ten_numbers"

        def schema(self) -> str:
            return "n INT"

        def reader(self, schema: Any) -> Reader:
            return Reader()

    pushing.dataSource.register(Ten)
    frame = pushing.read.format("ten_numbers").load()
    assert frame.where("n = 3").count() == 1
    assert frame.count() == 1, "ten, if Spark kept pushed filters by query"
