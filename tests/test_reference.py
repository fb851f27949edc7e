"""The generated page of settings says correctly when each setting may change; one release of Apache Kafka is the reference everywhere."""

import re
from pathlib import Path

from ottla.broker.metadata.configs import BrokerOptions
from ottla.log.options import TopicOptions
from ottla.wire.messages import KAFKA_RELEASE

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "configuration.md"
#: Pages about the past: they name the releases that were compared then.
OF_THEIR_TIME = ("docs/compatibility.md", "docs/decisions/")
#: A release of Kafka 4, and what makes it history: "before", "removed in" and the like in front of it, "and later" behind it.
RELEASE = re.compile(
    r"(?P<history>(?i:\b(?:before|since|until|from|removed in) (?:Apache )?))?Kafka (?P<release>4\.\d+)(?P<later> and later)?"
)
ROW = re.compile(r"^\| `([^`]+)` \|(?: [^|]*\|){3} ([^|]+) \|", re.MULTILINE)


def changes(section: str) -> dict[str, str]:
    """The column "changes" of one section, by setting."""
    text = PAGE.read_text().replace("\\|", "/").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return {found[1]: found[2] for found in ROW.finditer(text)}


def test_every_topic_setting_may_change_at_any_time_with_a_broker_default_or_without() -> None:
    assert changes("Topics") == dict.fromkeys(TopicOptions.SPECS, "at any time")


def test_a_broker_setting_changes_as_declared() -> None:
    assert changes("Brokers") == {name: spec.scope for name, spec in BrokerOptions.SPECS.items()}


def test_pages_and_comments_name_the_release_that_is_the_reference() -> None:
    """``KAFKA_RELEASE`` is the one place. Another release of Kafka 4 may be named as history, see ``RELEASE``."""
    paths = [ROOT / "README.md"]
    paths += [path for folder in ("docs", "src", "tests", "bench", "chaos", "examples") for path in sorted((ROOT / folder).rglob("*.*"))]
    other = [
        f"{name}:{number}: {line.strip()[:120]}"
        for path in paths
        if path.suffix in (".md", ".py", ".pyx") and not (name := path.relative_to(ROOT).as_posix()).startswith(OF_THEIR_TIME)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for found in RELEASE.finditer(line)
        if found["release"] != KAFKA_RELEASE and not found["history"] and not found["later"]
    ]
    assert not other, f"the reference is Kafka {KAFKA_RELEASE}:\n" + "\n".join(other)
