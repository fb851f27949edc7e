"""Scenarios of consumer groups in readable files: ``tests/scenarios/next_*.txt``.

A line that is not indented is a step; what it led to stands indented below it. With
``OTTLA_SCENARIOS=write`` this file alone writes
what happens now into the files; read the difference before you commit it.

    topic t 4                          a topic comes, grows, or, with 0, goes
    a joins t u [instance=i] [pattern=x.*] [assignor=range]
    a beats | a beats topics=t | a beats 3 times | a leaves | a rests
    k joins classic t | k syncs | k beats classic | k leaves classic
    wait 3                             seconds; who misses a deadline is told and removed
    group                              the group, its epochs and members
    settle a b c                       all beat once a second until the group is Stable
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from consumer_groups import Desk, ObedientMember, settle

from ottla.wire.errors import BY_CODE, KafkaError
from ottla.wire.messages.consumer_protocol import ConsumerProtocolAssignment, decode_embedded
from ottla.wire.messages.leave_group import MemberIdentity

SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios").glob("next_*.txt"))


class Story:
    """One scenario as it runs."""

    def __init__(self) -> None:
        self.desk = Desk({})
        self.members: dict[str, ObedientMember] = {}
        self.generations: dict[str, int] = {}
        self.owned: dict[str, dict[str, list[int]]] = {}
        self.topics: dict[str, list[str]] = {}

    def step(self, line: str) -> list[str]:
        """What a step leads to."""
        words = line.split()
        try:
            match words:
                case ["topic", name, size]:
                    self.desk.topics.become(**{name: int(size)})
                    return []
                case ["wait", seconds]:
                    return [f"{member} misses its {timer} deadline" for timer, member in self.desk.wait(int(seconds) * 1000)]
                case ["group"]:
                    return self.picture()
                case ["settle", *names]:
                    rounds = settle(self.desk, *(self.members[name] for name in names))
                    return [f"after {rounds} s", *self.picture()]
                case [name, what, "classic", *topics]:
                    return self.classic(name, what, topics)
                case [name, "syncs"]:
                    return self.sync(name)
                case [name, "joins", *said]:
                    return self.join(name, said)
                case [name, "beats", times, "times"]:
                    return [told for _ in range(int(times)) for told in self.beat(name)]
                case [name, "beats", *said]:
                    return self.beat(name, **_said(said))
                case [name, "leaves" | "rests" as how]:
                    answer = self.members[name].leave(-1 if how == "leaves" else -2)
                    return [f"{name} is in epoch {answer.member_epoch}"]
        except KafkaError as error:
            return [f"{BY_CODE[error.code].__name__}: {error}"]
        raise AssertionError(f"no step: {line}")

    def join(self, name: str, words: list[str]) -> list[str]:
        said = _said([word for word in words if "=" in word])
        topics = [word for word in words if "=" not in word]
        named = {"pattern": said.get("pattern"), "instance_id": said.get("instance")}
        self.members[name] = ObedientMember(self.desk, name, *topics, **named, server_assignor=said.get("assignor"))
        return self.beat(name)

    def beat(self, name: str, topics: str | None = None) -> list[str]:
        member = self.members[name]
        fields = {"subscribed_topic_names": topics.split(",")} if topics is not None else {}
        answer = member.beat(**fields)
        told = "" if answer.assignment is None else f", reads {member.reads or 'nothing'}"
        return [f"{name} is in epoch {answer.member_epoch}{told}, comes again after {answer.heartbeat_interval_ms / 1000:g} s"]

    def classic(self, name: str, what: str, topics: list[str]) -> list[str]:
        match what:
            case "joins":
                self.topics[name] = topics or self.topics[name]
                answer = self.desk.classic_join(name, *self.topics[name], owned=self.owned.get(name, {}))
                self.generations[name] = answer.generation_id
                return [f"{name} is in generation {answer.generation_id} of {answer.protocol_name}, and does not lead"]
            case "beats":
                code = self.desk.classic_beat(name, self.generations[name]).error_code
                return [f"{name} is told {BY_CODE[code].__name__}" if code else f"{name} may go on"]
            case "leaves":
                [answer] = self.desk.classic_leave(MemberIdentity(member_id=name)).members
                return [f"{name} left with {answer.error_code}"]
        raise AssertionError(f"no step of a classic member: {what}")

    def sync(self, name: str) -> list[str]:
        assignment = decode_embedded(ConsumerProtocolAssignment, self.desk.classic_sync(name, self.generations[name]).assignment)
        self.owned[name] = {each.topic: each.partitions for each in assignment.assigned_partitions}
        shown = " ".join(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in self.owned[name].items())
        return [f"{name} reads {shown or 'nothing'}"]

    def picture(self) -> list[str]:
        group = self.desk.group
        lines = [f"{group.state}, epoch {group.epoch}, assignment of {group.assignment_epoch}"]
        for name, (epoch, state, reads, *gives_up) in self.desk.picture().items():
            still = f", gives up {gives_up[0]}" if gives_up else ""
            lines.append(f"{name}: epoch {epoch}, {state}, reads {reads or 'nothing'}{still}")
        return lines


def _said(words: list[str]) -> dict[str, Any]:
    return dict(word.split("=", 1) for word in words)


def told(text: str, step: Callable[[str], list[str]]) -> str:
    """A scenario with what its steps lead to now; blank lines and comments stay."""
    lines = []
    for line in text.splitlines():
        if line.startswith(("    ", "\t")):
            continue
        lines.append(line)
        if line.strip() and not line.startswith("#"):
            lines += [f"    {outcome}" for outcome in step(line)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_story_goes_as_it_is_written(path: Path) -> None:
    text = path.read_text()
    now = told(text, Story().step)
    if os.environ.get("OTTLA_SCENARIOS") == "write":
        path.write_text(now)
    assert now == text


def test_there_are_stories() -> None:
    assert SCENARIOS
