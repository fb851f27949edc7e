"""The join that `chaos.pipelines --join` expects of a pipeline."""

import json

from chaos.pipeline_files import ANSWERS, CLOSING, EVENTS, LIMIT_MS, answer, event, joined


def test_the_expected_join_is_that_of_the_records() -> None:
    events, answers = [0, 1, 2, 3, 6, 7, 9], [0, 1, 2, 3, 5, 7, 8, 12]
    left, right = ([json.loads(make(number, 100)) for number in numbers] for make, numbers in ((event, events), (answer, answers)))
    pairs = []
    for one in left:
        found = [other for other in right if other["n"] == one["n"] and one["at"] <= other["at"] <= one["at"] + LIMIT_MS]
        pairs += [4 * one["n"] + other["m"] - one["n"] + 1 for other in found] or [4 * one["n"]]
    assert sorted(joined(events, answers).elements()) == sorted(pairs) == [1, 2, 4, 8, 13, 26, 28, 36]
    closing = [json.loads(CLOSING[topic]) for topic in (EVENTS, ANSWERS)]
    assert closing[0]["n"] != closing[1]["n"] and min(one["at"] for one in closing) > max(one["at"] for one in (*left, *right))
