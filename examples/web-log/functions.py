"""Functions for web-log.toml: each public one is a function of SQL with the types that it declares."""

import re

ROBOT = re.compile(r"bot|crawl|spider|slurp|feed|rss|curl|wget|java/|python|ruby", re.IGNORECASE)


def is_robot(agent: str | None) -> bool:
    """Whether a program asked rather than a person, as far as it says who it is."""
    return agent is None or bool(ROBOT.search(agent))
