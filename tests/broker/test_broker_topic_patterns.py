"""Subscriptions by regular expression: matching, and that no expression occupies the broker."""

import pytest

from ottla.broker.groups.consumer.topic_patterns import PATTERN_CHARACTERS_MAX, compiled, matching
from ottla.wire.errors import InvalidRegularExpression


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("a.*", {"a", "ab"}),
        ("a|b", {"a", "b"}),
        ("A", set()),
        ("(?i)A", {"a"}),
        (r"\w{2}", {"ab", "bb"}),
        ("[^_].*", {"a", "ab", "b", "bb"}),
        ("", set()),
    ],
)
def test_topic_matches_if_its_whole_name_does(pattern: str, found: set[str]) -> None:
    assert matching(pattern, ["a", "ab", "b", "bb", "__consumer_offsets"]) == found


def test_internal_topics_match_like_any_other() -> None:
    assert matching("__.*", ["__consumer_offsets", "__mine", "a"]) == {"__consumer_offsets", "__mine"}


@pytest.mark.parametrize("pattern", ["(a", "a**", "[z-a]", r"(a)\1", "(?=a)", "a{1,99999}"])
def test_an_expression_that_re2_does_not_support_is_refused_with_a_reason(pattern: str) -> None:
    with pytest.raises(InvalidRegularExpression, match="RE2"):
        compiled(pattern)


def test_expression_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidRegularExpression):
        compiled("a" * (PATTERN_CHARACTERS_MAX + 1))


def test_expression_that_needs_too_much_memory_is_refused() -> None:
    with pytest.raises(InvalidRegularExpression):
        compiled("((a{100}){100}){100}")


def test_expression_that_is_too_complex_is_refused_and_a_list_of_topics_is_not() -> None:
    with pytest.raises(InvalidRegularExpression, match="too complex"):
        compiled(r"\pL{20}x")
    names = [f"department-{number}.orders" for number in range(100)]
    assert matching("|".join(names).replace(".", r"\."), [*names, "other"]) == set(names)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+b", "(.*a){20}", "(a?){200}a{200}"])
def test_an_expression_with_catastrophic_backtracking_is_matched_in_linear_time(pattern: str) -> None:
    names = ["a" * 240 + "!" + str(number) for number in range(200)]
    assert matching(pattern, names) == set()
