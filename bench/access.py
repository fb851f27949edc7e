"""Time of one check of access rules, with 100,000 rules.

    python -m bench.access [--rules N] [--checks N]

Half of the rules are literal, half are prefixes of 30 lengths; 1,000 principals; one in ten rules denies. A checked name is covered by a
rule in half of the cases. ``first``: a check that was not made before since a rule changed, which searches the index; ``again``: one that
was; ``nothing``: the same loop without a check, which tells the time of reading the clock and of other programs. Percentiles are of single
checks. ``least``: for each check the least time of five rounds, which leaves out most of what other programs do to the caches.

The garbage collector has the settings of a broker. With Python's own it runs after every 700 checks or so, and empties the caches.
"""

import argparse
import time
from collections.abc import Callable
from random import Random

from ottla.base.acls import Entry, Operation, Pattern, PatternType, Permission, ResourceType
from ottla.broker.security.authorizer import Authorizer
from ottla.server.process import freeze_memory

OPERATIONS = (Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL)
PRINCIPALS = 1_000
LENGTHS = range(5, 35)
ROUNDS = 5
Asked = tuple[str, str, Operation, ResourceType, str]


def authorizer_of(rules: int, rng: Random) -> tuple[Authorizer, list[str]]:
    """An authorizer with this number of rules, and names that they are about."""
    found = Authorizer(["User:root"])
    names = []
    for number in range(rules):
        name = f"{number:x}-{rng.getrandbits(160):040x}"
        if number % 2:
            name = name[: rng.choice(LENGTHS)]
        kind = PatternType.PREFIXED if number % 2 else PatternType.LITERAL
        permission = Permission.DENY if number % 10 == 0 else Permission.ALLOW
        entry = Entry(f"User:{number % PRINCIPALS}", "*", rng.choice(OPERATIONS), permission)
        found.change(Pattern(ResourceType.TOPIC, kind, name), [entry])
        names.append(name)
    return found, names


def percentiles(times_ns: list[int]) -> str:
    ordered = sorted(times_ns)
    return ", ".join(
        f"p{share:g} {ordered[min(int(len(ordered) * share / 100), len(ordered) - 1)] / 1000:.2f} us" for share in (50, 99, 99.9)
    )


def measured(decide: Callable[[str, str, Operation, ResourceType, str], object], asked: list[Asked]) -> list[int]:
    times_ns = []
    for principal, host, operation, kind, name in asked:
        begun = time.perf_counter_ns()
        decide(principal, host, operation, kind, name)
        times_ns.append(time.perf_counter_ns() - begun)
    return times_ns


def least(rounds: list[list[int]]) -> list[int]:
    return [min(times) for times in zip(*rounds, strict=True)]


def nothing(principal: str, host: str, operation: Operation, kind: ResourceType, name: str) -> None:
    """A call that costs what every call costs."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rules", type=int, default=100_000)
    parser.add_argument("--checks", type=int, default=50_000)
    options = parser.parse_args()
    rng = Random(1)
    begun = time.perf_counter()
    authorizer, names = authorizer_of(options.rules, rng)
    print(f"{options.rules} rules: {time.perf_counter() - begun:.2f} s to build the index")
    asked = [
        (
            f"User:{rng.randrange(PRINCIPALS)}",
            "10.0.0.7",
            rng.choice(OPERATIONS[:3]),
            ResourceType.TOPIC,
            rng.choice(names) + (f"-{number}" if number % 2 else "") if number % 4 else f"unknown-{number}",
        )
        for number in range(options.checks)
    ]
    freeze_memory()
    rounds: list[list[int]] = []
    for number in range(ROUNDS):
        # Any change empties what is remembered.
        authorizer.change(Pattern(ResourceType.GROUP, PatternType.LITERAL, f"group-{number}"), [])
        rounds.append(measured(authorizer.decide, asked))
        print("first:  ", percentiles(rounds[-1]))
    print("least:  ", percentiles(least(rounds)))
    print("again:  ", percentiles(measured(authorizer.decide, asked)))
    print("nothing:", percentiles(measured(nothing, asked)))
    begun = time.perf_counter()
    for number in range(100):
        authorizer.change(
            Pattern(ResourceType.TOPIC, PatternType.PREFIXED, f"new-{number}"), [Entry("User:1", "*", Operation.ALL, Permission.ALLOW)]
        )
    print(f"a change of a rule: {(time.perf_counter() - begun) * 10_000:.1f} us")


if __name__ == "__main__":
    main()
