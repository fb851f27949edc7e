"""Forms of a partition argument."""

import pytest

from ottla.base.ids import TopicPartition, as_partition


def test_a_partition_is_a_pair_or_a_topic_partition() -> None:
    assert as_partition(("orders", 1)) == as_partition(TopicPartition("orders", 1)) == TopicPartition("orders", 1)


@pytest.mark.parametrize("wrong", [("orders", "1"), ("orders", TopicPartition("orders", 1)), (0, 1)])
def test_other_arguments_are_refused_with_an_example(wrong: tuple[object, object]) -> None:
    with pytest.raises(TypeError, match=r"such as \('orders', 0\)"):
        as_partition(wrong)  # type: ignore[arg-type]
