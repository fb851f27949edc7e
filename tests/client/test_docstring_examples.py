"""Docstrings of the public clients: each method has an example, which is valid Python, calls the method, and names existing parameters."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import ottla
import ottla.aio
from ottla.base.scram import ScramMechanism
from ottla.testing import Broker
from ottla.wire.errors import KafkaError

EXAMPLE = re.compile(r"Example: `(.+?)`\.", re.DOTALL)
#: Methods that other parts of Ottla call. Applications do not need them.
INTERNAL = {
    "Producer": {"adopt", "close_at_exit", "forked", "hand_over", "numbered", "start", "transactions"},
    "Consumer": {
        "clock_ms", "has_passed", "in_group", "offsets_of", "partitions_to_read", "seek_each", "settled", "start", "turn", "wait_for",
    },
    "Admin": set(),
}  # fmt: skip
CLASSES = (ottla.Producer, ottla.Consumer, ottla.Admin, ottla.aio.Producer, ottla.aio.Consumer, ottla.aio.Admin)
#: What examples take for given.
VARIABLES = {"password", "token", "batch", "table", "consumer", "producer", "admin", "prepared", "offsets", "error", "print"}


def methods() -> Iterator[tuple[type[Any], str, Any]]:
    for client in CLASSES:
        for name, method in inspect.getmembers(client, callable):
            if not name.startswith("_") and name not in INTERNAL[client.__name__]:
                yield client, name, method


@pytest.mark.parametrize(("client", "name", "method"), list(methods()), ids=lambda one: getattr(one, "__module__", one))
def test_a_method_has_an_example_that_fits_its_signature(client: type[Any], name: str, method: Any) -> None:
    found = EXAMPLE.search(inspect.getdoc(method) or "")
    assert found is not None, f"{client.__module__}.{name} has no example"
    expression = ast.parse(" ".join(found[1].removeprefix("await ").split()), mode="eval").body
    assert isinstance(expression, ast.Call) and isinstance(expression.func, ast.Attribute)
    assert expression.func.attr == name
    inspect.signature(method).bind(client, *expression.args, **{one.arg or "": one.value for one in expression.keywords})
    unknown = {
        node.id
        for node in ast.walk(expression)
        if isinstance(node, ast.Name) and node.id not in VARIABLES and not hasattr(ottla, node.id) and not hasattr(ottla.results, node.id)
    }
    assert not unknown - {"ScramMechanism"}, f"names that an application cannot import: {unknown}"


def test_times_are_in_milliseconds_and_their_parameters_say_so() -> None:
    timed = re.compile(r"timeout|period|lifetime|duration|interval|wait|older|longer")
    for client, name, method in methods():
        wrong = [one for one in inspect.signature(method).parameters if timed.search(one) and not one.endswith("_ms")]
        assert not wrong, f"{client.__module__}.{name}: {wrong}"


@pytest.mark.server
def test_examples_of_the_admin_client_run_against_a_broker() -> None:
    """A cluster may refuse one, as for a group that does not exist. A wrong argument would be a TypeError or a ValueError."""
    names = {**vars(ottla.results), "ScramMechanism": ScramMechanism, "password": "secret-of-ann", "NewTopic": ottla.NewTopic}
    examples = {name: EXAMPLE.search(inspect.getdoc(method) or "") for client, name, method in methods() if client is ottla.Admin}
    refused = set()
    with Broker() as broker, ottla.Admin(bootstrap_servers=broker.bootstrap_servers, default_api_timeout_ms=5_000, retries=1) as admin:
        for name in sorted(examples, key=lambda name: (name.startswith(("delete", "unregister", "close")), name == "close", name)):
            found = examples[name]
            assert found is not None
            if "token." in found[1]:
                continue
            try:
                eval(found[1], {**names, "admin": admin})
            except KafkaError:
                refused.add(name)
    assert not refused & {"create_topics", "describe_topics", "list_topics", "list_offsets", "describe_cluster", "describe_log_dirs"}
