"""Functions for web-log.toml: each public one is a SQL function with its annotated types."""

import re

ROBOT = re.compile(r"bot|crawl|spider|slurp|feed|rss|curl|wget|java/|python|ruby", re.IGNORECASE)


def is_robot(agent: str | None) -> bool:
    """Whether the user agent names a program."""
    return agent is None or bool(ROBOT.search(agent))
