"""The error codes against the tables of two other projects."""

from __future__ import annotations

import kafka.errors
import pytest
from kio.schema.errors import ErrorCode

from ottla.wire import errors
from ottla.wire.errors import BY_CODE, KafkaError, error_for


def test_the_table_is_complete_from_minus_one_to_136() -> None:
    assert sorted([*BY_CODE, errors.NONE]) == list(range(-1, 137))


@pytest.mark.parametrize("theirs", [code for code in ErrorCode if code], ids=lambda code: code.name)
def test_code_constant_and_retriable_agree_with_kio(theirs: ErrorCode) -> None:
    ours = BY_CODE[int(theirs)]
    assert (ours.constant.lower(), ours.retriable) == (theirs.name, theirs.retriable)
    assert getattr(errors, ours.__name__) is ours


#: kafka-python does not call these retriable; Kafka does.
STRICTER_THERE = {2}


def test_retriable_agrees_with_kafka_python_but_for_one_code() -> None:
    theirs = {c.errno: c for c in vars(kafka.errors).values() if isinstance(c, type) and getattr(c, "errno", None)}  # type: ignore[attr-defined]
    assert len(theirs) > 120
    different = {code for code, cls in theirs.items() if cls.retriable != BY_CODE[code].retriable}  # type: ignore[attr-defined]
    assert different == STRICTER_THERE


def test_every_error_has_a_sentence_of_its_own() -> None:
    sentences = [cls.sentence for cls in BY_CODE.values()]
    assert len(set(sentences)) == len(sentences)
    assert all(sentence.endswith(".") and "\n" not in sentence for sentence in sentences)


def test_the_text_of_an_error_is_its_message_or_its_docstring() -> None:
    assert str(errors.NotController()) == errors.NotController.sentence
    assert str(errors.NotController("broker 3 is")) == "broker 3 is"
    assert error_for(41, "broker 3 is").message == "broker 3 is"
    assert type(error_for(41)) is errors.NotController


def test_a_code_from_the_future_becomes_an_unknown_server_error_that_names_it() -> None:
    error = error_for(999, "what")
    assert type(error) is errors.UnknownServerError
    assert str(error) == "error code 999: what"


def test_the_base_of_all_errors_is_not_in_the_table() -> None:
    assert KafkaError not in BY_CODE.values()
    with pytest.raises(KafkaError):
        raise error_for(3)


def test_an_error_derived_without_a_code_is_answered_as_its_parent() -> None:
    class NameTaken(errors.TopicAlreadyExists):
        """A topic whose name differs in case alone."""

    assert (NameTaken.code, str(NameTaken())) == (36, errors.TopicAlreadyExists.sentence)
    assert BY_CODE[36] is errors.TopicAlreadyExists
