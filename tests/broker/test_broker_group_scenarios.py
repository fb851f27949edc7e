"""Scenario files of groups of the classic protocol: ``tests/scenarios/classic_*.txt``.

A line without indentation is a step. The responses that have arrived by its end follow, indented. Member ids appear as the names of
their members, a second id of a member as ``name'``. With ``OTTLA_SCENARIOS=write`` this test writes the current results into the files.
Read the difference before you commit it.

    set group.max.size 2               settings, before anything else
    a joins [v=3] [instance=i] [session=6] [rebalance=30] [range,sticky]     seconds
    a joins again                      with the id it has
    a joins anew                       without
    a syncs [a=0,1 b=2,3]              the leader sends the assignment
    a beats [generation=7] | a leaves | a hangs up
    a commits t-0 42 [text=...]        as a member; "commits alone" names no member
    offsets                            what is committed
    group                              the response of DescribeGroups
    wait 3                             seconds
    the broker restarts
"""

import os
from pathlib import Path
from typing import Any

import pytest
from cluster import Broker, Cluster, Sent
from groups import SETTINGS, commit, committed, coordinating, heartbeat, join_request, leave, sync

from ottla.wire.errors import BY_CODE
from ottla.wire.messages.describe_groups import DescribeGroupsRequest

SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios").glob("classic_*.txt"))


class Joined:
    """State of a member on the client's side."""

    def __init__(self) -> None:
        self.member_id = ""
        self.generation_id = -1
        self.instance: str | None = None
        self.join_fields: dict[str, Any] = {}
        self.version = 9


def options_in(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words if "=" in word)


class Scenario:
    """One scenario as it runs."""

    def __init__(self) -> None:
        self.settings = dict(SETTINGS)
        self.made: Cluster | None = None
        self.members: dict[str, Joined] = {}
        self.names: dict[str, str] = {}
        #: (member, kind of request, request) without a response yet.
        self.waiting: list[tuple[str, str, Sent]] = []

    @property
    def cluster(self) -> Cluster:
        if self.made is None:
            self.made = Cluster(settings=self.settings)
            self.made.topic("t", partitions=4)
            coordinating(self.made)
        return self.made

    @property
    def broker(self) -> Broker:
        return self.cluster[1]

    def step(self, line: str) -> list[str]:
        """Runs one step and returns the responses that have arrived by its end."""
        lines: list[str] = []
        match line.split():
            case ["set", name, value]:
                self.settings[name] = value
            case ["wait", seconds]:
                self.cluster.pass_ms(round(float(seconds) * 1000))
            case ["the", "broker", "restarts"]:
                self.waiting.clear()
                self.cluster.restart(1)
            case ["group"]:
                lines = self.describe()
            case ["offsets"]:
                lines = [
                    f"{topic}-{number}: {offset} {text}".rstrip() for (topic, number), (offset, _, text) in committed(self.broker).items()
                ]
            case [name, verb, *words]:
                lines = self.act(name, verb, words)
            case _:
                raise AssertionError(f"no step: {line}")
        return lines + self.answers()

    def act(self, name: str, verb: str, words: list[str]) -> list[str]:
        member = self.members.setdefault(name, Joined())
        options = options_in(words)
        match verb:
            case "joins":
                return self.join(name, member, words)
            case "syncs":
                given = {self.members[other].member_id: part.encode() for other, part in options.items()}
                self.waiting.append((name, "assigned", sync(self.broker, member, given=given, group_instance_id=member.instance)))
                return []
            case "beats":
                generation = int(options.get("generation", member.generation_id))
                return [f"{name}: {word(heartbeat(self.broker, member, generation_id=generation, group_instance_id=member.instance))}"]
            case "leaves":
                return [f"{name}: {word(leave(self.broker, member.member_id)[1])}"]
            case "hangs":
                for who, _, sent in self.waiting:
                    if who == name:
                        self.broker.hang_up(sent)
                self.waiting = [entry for entry in self.waiting if entry[0] != name]
                return []
            case "commits":
                alone = words[0] == "alone"
                place, offset = words[1:3] if alone else words[:2]
                topic, _, number = place.rpartition("-")
                text, sender = options.get("text", ""), None if alone else member
                return [
                    f"{name}: {word(commit(self.broker, 'g', topic, int(number), int(offset), joined=sender, committed_metadata=text))}"
                ]
        raise AssertionError(f"unknown step: {verb}")

    def join(self, name: str, member: Joined, words: list[str]) -> list[str]:
        if words == ["anew"]:
            member.member_id = ""
        elif words != ["again"]:
            options = options_in(words)
            ways = next((found for found in words if "=" not in found), "range").split(",")
            member.instance, member.version = options.get("instance"), int(options.get("v", 9))
            member.join_fields = {
                "session_timeout_ms": 1000 * int(options.get("session", 10)),
                "rebalance_timeout_ms": 1000 * int(options.get("rebalance", 60)),
                "protocols": tuple((way, b"%s of %s" % (way.encode(), name.encode())) for way in ways),
            }
        sent = self.broker.send(join_request("g", member.member_id, instance=member.instance, **member.join_fields), member.version)
        if sent.answer is not None and sent.answer.error_code == 79:
            member.member_id = sent.answer.member_id
            self.name(name, member.member_id)
            return [f"{name} receives a member id", *self.join(name, member, ["again"])]
        self.waiting.append((name, "joined", sent))
        return []

    def answers(self) -> list[str]:
        """Responses to pending requests, in the order of the requests."""
        lines = []
        for name, what, sent in self.waiting:
            if sent.answer is not None and what == "joined":
                self.name(name, sent.answer.member_id)
        for name, what, sent in self.waiting:
            if sent.waits:
                continue
            if sent.answer.error_code:
                lines.append(f"{name}: {word(sent.answer.error_code)}")
            elif what == "joined":
                lines.append(self.joined(name, sent.answer))
            else:
                lines.append(f"{name} receives {sent.answer.assignment.decode() or 'nothing'}")
        self.waiting = [entry for entry in self.waiting if entry[2].waits]
        return lines

    def joined(self, name: str, answer: Any) -> str:
        member = self.members[name]
        member.member_id, member.generation_id = answer.member_id, answer.generation_id
        lines = f"{name} is in generation {answer.generation_id}, protocol {answer.protocol_name}, "
        if answer.leader == answer.member_id:
            others = ", ".join(f"{self.names[each.member_id]} ({each.metadata.decode()})" for each in answer.members)
            return lines + f"leader of {others}" + ("; skips the assignment" if answer.skip_assignment else "")
        return lines + f"leader {self.names.get(answer.leader, 'unknown')}"

    def name(self, name: str, member_id: str) -> None:
        if member_id and member_id not in self.names:
            while name in self.names.values():
                name += "'"
            self.names[member_id] = name

    def describe(self) -> list[str]:
        [group] = self.broker.ask(DescribeGroupsRequest(groups=["g"]), 5).groups
        lines = [f"{group.group_state} {group.protocol_type} {group.protocol_data}".rstrip()]
        for member in group.members:
            known = self.names.get(member.member_id, "somebody")
            static = f" as {member.group_instance_id}" if member.group_instance_id is not None else ""
            lines.append(f"  {known}{static}" + (f" reads {member.member_assignment.decode()}" if member.member_assignment else ""))
        return lines


def word(code: int) -> str:
    return BY_CODE[code].__name__ if code else "well"


def run(text: str) -> str:
    """Returns the scenario with the results of its steps."""
    scenario, lines = Scenario(), []
    for line in text.splitlines():
        if line.startswith(" "):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += [f"    {result}" for result in scenario.step(line)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_steps_have_the_results_in_the_scenario_file(path: Path) -> None:
    text = path.read_text()
    now = run(text)
    if os.environ.get("OTTLA_SCENARIOS") == "write":
        path.write_text(now)
    assert now == text


def test_scenario_files_exist() -> None:
    assert len(SCENARIOS) >= 6
