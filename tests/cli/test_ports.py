"""A bootstrap address without a port, from any source, is refused before a command connects."""

import pytest
from click.testing import CliRunner

from ottla.cli.main import main


@pytest.mark.parametrize(
    "words",
    [
        ["topic", "list"],
        ["consume", "t"],
        ["group", "list"],
        ["table", "sync", "t", "--to", "x"],
        ["doctor"],
        ["pipeline", "run", __file__],
    ],
)
def test_an_address_without_a_port_is_a_usage_error(words: list[str]) -> None:
    done = CliRunner().invoke(main, [*words, "-b", "broker1"])
    assert done.exit_code == 2 and "'broker1' has no port; write broker1:9092" in done.output, done.output


def test_the_error_names_the_environment_variable_of_the_address() -> None:
    done = CliRunner().invoke(main, ["topic", "list"], env={"OTTLA_BOOTSTRAP_SERVERS": "a:1,broker1"})
    assert done.exit_code == 2 and "OTTLA_BOOTSTRAP_SERVERS: 'broker1' has no port; write broker1:9092" in done.output
