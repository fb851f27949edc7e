"""The generated page of settings says correctly when each setting may change."""

import re
from pathlib import Path

from ottla.broker.metadata.configs import BrokerOptions
from ottla.log.options import TopicOptions

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "configuration.md"
ROW = re.compile(r"^\| `([^`]+)` \|(?: [^|]*\|){3} ([^|]+) \|", re.MULTILINE)


def changes(section: str) -> dict[str, str]:
    """The column "changes" of one section, by setting."""
    text = PAGE.read_text().replace("\\|", "/").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return {found[1]: found[2] for found in ROW.finditer(text)}


def test_every_topic_setting_may_change_at_any_time_with_a_broker_default_or_without() -> None:
    assert changes("Topics") == dict.fromkeys(TopicOptions.SPECS, "at any time")


def test_a_broker_setting_changes_as_declared() -> None:
    assert changes("Brokers") == {name: spec.scope for name, spec in BrokerOptions.SPECS.items()}
