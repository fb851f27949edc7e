"""Scenario files of consumer groups: ``tests/scenarios/consumer_*.txt``.

A line without indentation is a step. Its results follow, indented. With ``OTTLA_SCENARIOS=write`` this test
writes the current results into the files. Read the difference before you commit it.

    topic t 4                          creates a topic, adds partitions, or, with 0, deletes it
    a joins t u [instance=i] [pattern=x.*] [assignor=range]
    a beats | a beats topics=t | a beats 3 times | a leaves | a rests
    k joins classic t | k syncs | k beats classic | k leaves classic
    wait 3                             seconds; members that miss a deadline are listed and removed
    group                              the group, its epochs and members
    settle a b c                       all send a heartbeat once a second until the group is Stable
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from consumer_groups import GroupHarness, ObedientMember, settle

from ottla.wire.errors import BY_CODE, KafkaError
from ottla.wire.messages.consumer_protocol import ConsumerProtocolAssignment, decode_embedded
from ottla.wire.messages.leave_group import MemberIdentity

SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios").glob("consumer_*.txt"))


class Scenario:
    """One scenario as it runs."""

    def __init__(self) -> None:
        self.harness = GroupHarness({})
        self.members: dict[str, ObedientMember] = {}
        self.generations: dict[str, int] = {}
        self.owned: dict[str, dict[str, list[int]]] = {}
        self.topics: dict[str, list[str]] = {}

    def step(self, line: str) -> list[str]:
        """Runs one step and returns its results."""
        words = line.split()
        try:
            match words:
                case ["topic", name, size]:
                    self.harness.topics.become(**{name: int(size)})
                    return []
                case ["wait", seconds]:
                    return [f"{member} misses its {timer} deadline" for timer, member in self.harness.wait(int(seconds) * 1000)]
                case ["group"]:
                    return self.describe()
                case ["settle", *names]:
                    rounds = settle(self.harness, *(self.members[name] for name in names))
                    return [f"after {rounds} s", *self.describe()]
                case [name, what, "classic", *topics]:
                    return self.classic(name, what, topics)
                case [name, "syncs"]:
                    return self.sync(name)
                case [name, "joins", *options]:
                    return self.join(name, options)
                case [name, "beats", times, "times"]:
                    return [line for _ in range(int(times)) for line in self.beat(name)]
                case [name, "beats", *options]:
                    return self.beat(name, **_options(options))
                case [name, "leaves" | "rests" as how]:
                    answer = self.members[name].leave(-1 if how == "leaves" else -2)
                    return [f"{name} is in epoch {answer.member_epoch}"]
        except KafkaError as error:
            return [f"{BY_CODE[error.code].__name__}: {error}"]
        raise AssertionError(f"no step: {line}")

    def join(self, name: str, words: list[str]) -> list[str]:
        options = _options([word for word in words if "=" in word])
        topics = [word for word in words if "=" not in word]
        named = {"pattern": options.get("pattern"), "instance_id": options.get("instance")}
        self.members[name] = ObedientMember(self.harness, name, *topics, **named, server_assignor=options.get("assignor"))
        return self.beat(name)

    def beat(self, name: str, topics: str | None = None) -> list[str]:
        member = self.members[name]
        fields = {"subscribed_topic_names": topics.split(",")} if topics is not None else {}
        answer = member.beat(**fields)
        assigned = "" if answer.assignment is None else f", reads {member.reads or 'nothing'}"
        return [f"{name} is in epoch {answer.member_epoch}{assigned}, next heartbeat in {answer.heartbeat_interval_ms / 1000:g} s"]

    def classic(self, name: str, what: str, topics: list[str]) -> list[str]:
        match what:
            case "joins":
                self.topics[name] = topics or self.topics[name]
                answer = self.harness.classic_join(name, *self.topics[name], owned=self.owned.get(name, {}))
                self.generations[name] = answer.generation_id
                return [f"{name} is in generation {answer.generation_id} of {answer.protocol_name}, and is not the leader"]
            case "beats":
                code = self.harness.classic_beat(name, self.generations[name]).error_code
                return [f"{name} receives {BY_CODE[code].__name__}" if code else f"{name} continues"]
            case "leaves":
                [answer] = self.harness.classic_leave(MemberIdentity(member_id=name)).members
                return [f"{name} left with {answer.error_code}"]
        raise AssertionError(f"no step of a classic member: {what}")

    def sync(self, name: str) -> list[str]:
        assignment = decode_embedded(ConsumerProtocolAssignment, self.harness.classic_sync(name, self.generations[name]).assignment)
        self.owned[name] = {each.topic: each.partitions for each in assignment.assigned_partitions}
        shown = " ".join(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in self.owned[name].items())
        return [f"{name} reads {shown or 'nothing'}"]

    def describe(self) -> list[str]:
        group = self.harness.group
        lines = [f"{group.state}, epoch {group.epoch}, assignment of {group.assignment_epoch}"]
        for name, (epoch, state, reads, *gives_up) in self.harness.describe().items():
            still = f", gives up {gives_up[0]}" if gives_up else ""
            lines.append(f"{name}: epoch {epoch}, {state}, reads {reads or 'nothing'}{still}")
        return lines


def _options(words: list[str]) -> dict[str, Any]:
    return dict(word.split("=", 1) for word in words)


def run(text: str, step: Callable[[str], list[str]]) -> str:
    """Returns the scenario with the results of its steps. Keeps blank lines and comments."""
    lines = []
    for line in text.splitlines():
        if line.startswith(("    ", "\t")):
            continue
        lines.append(line)
        if line.strip() and not line.startswith("#"):
            lines += [f"    {outcome}" for outcome in step(line)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_steps_have_the_results_in_the_scenario_file(path: Path) -> None:
    text = path.read_text()
    now = run(text, Scenario().step)
    if os.environ.get("OTTLA_SCENARIOS") == "write":
        path.write_text(now)
    assert now == text


def test_scenario_files_exist() -> None:
    assert SCENARIOS
