"""Small inputs for the worked examples, with the expected results computed while they are generated."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import floor

START = datetime(2026, 3, 7, 10, tzinfo=UTC)
BROWSER = "Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101"
ROBOT = "Examplebot/2.1 (+http://robots.invalid/)"


@dataclass
class WebLog:
    """Lines of a web server's log, and their content."""

    lines: list[bytes] = field(default_factory=list)
    #: Requests, clients and bytes by hour, status class and whether a robot sent them.
    by_hour: dict[tuple[datetime, str, bool], tuple[int, set[str], int]] = field(default_factory=dict)
    #: Lines that are not requests, by offset.
    unreadable: dict[int, bytes] = field(default_factory=dict)


def web_log(count: int = 300, seed: int = 1) -> WebLog:
    draw, made = random.Random(seed), WebLog()
    for number in range(count):
        if number % 100 == 50:
            line = b"no request" if number == 50 else b'10.0.0.1 - - [soon] "GET / HTTP/1.1" 200 1 "-" "-"'
            made.unreadable[number] = line
            made.lines.append(line)
            continue
        at = START + timedelta(seconds=20 * number)
        client, page = f"10.0.0.{draw.randrange(1, 9)}", draw.choice(["/", "/books", "/books/17", "/search?q=%22"])
        status, size = draw.choices([200, 304, 404, 500], [12, 3, 3, 1])[0], draw.randrange(100, 9_000)
        robot, unsized = draw.random() < 0.2, draw.random() < 0.1
        answer = f"{status} {'-' if unsized else size}"
        said = f'{client} - - [{at:%d/%b/%Y:%H:%M:%S +0000}] "GET {page} HTTP/1.1" {answer} "-" "{ROBOT if robot else BROWSER}"'
        made.lines.append(said.encode())
        group = (at.replace(minute=0, second=0), f"{status // 100}xx", robot)
        requests, clients, total = made.by_hour.get(group, (0, set(), 0))
        made.by_hour[group] = (requests + 1, clients | {client}, total + (0 if unsized else size))
    return made


def ssh_log() -> list[bytes]:
    """A failed guesser, a successful one, a user who mistypes once, noise, and lines of another program."""
    begun = datetime(2026, 3, 7, 10, 5)
    lines: list[tuple[datetime, str]] = []

    def say(seconds: int, message: str, program: str = "sshd[71]") -> None:
        lines.append((begun + timedelta(seconds=seconds), f"gate {program}: {message}"))

    for number in range(30):
        name = ("root", "invalid user admin", "invalid user oracle")[number % 3]
        say(10 * number, f"Failed password for {name} from 192.0.2.7 port {4000 + number} ssh2")
    for number in range(4):
        say(600 + 10 * number, f"Failed password for alice from 198.51.100.9 port {5000 + number} ssh2")
    say(650, "message repeated 3 times: [ Failed password for alice from 198.51.100.9 port 5004 ssh2]")
    say(700, "Accepted password for alice from 198.51.100.9 port 5010 ssh2")
    say(710, "Failed password for alice from 198.51.100.9 port 5011 ssh2")
    say(800, "Failed password for bob from 203.0.113.5 port 6000 ssh2")
    say(805, "Accepted publickey for bob from 203.0.113.5 port 6000 ssh2")
    say(810, "Connection closed by 203.0.113.5 [preauth]")
    say(815, "Failed password for root from 192.0.2.7 port 1 ssh2", program="imitator")
    return [f"{at:%b} {at.day:>2} {at:%H:%M:%S} {said}\r".encode() for at, said in sorted(lines)]


def flights(count: int = 400, seed: int = 3) -> Iterator[tuple[bytes, tuple[int, str, int]]]:
    """A record, with its hour, haul and delay."""
    draw = random.Random(seed)
    for _ in range(count):
        time, distance, delay = draw.choice([6, 7, 18]) + draw.randrange(60) / 60, draw.randrange(60, 4000), draw.randrange(-20, 90)
        haul = "short" if distance < 500 else "medium" if distance < 1500 else "long"
        yield json.dumps({"delay": delay, "distance": distance, "time": time}).encode(), (floor(time), haul, delay)
