"""Consumer groups of 10, 100 and 500 members: duration of a rebalance, and its effect on other clients."""

from __future__ import annotations

from bench.cases import Case, CaseContext, Figure, Measurement, Scale
from bench.loads.groups import median_ms

PARTITIONS = 1_000
PROTOCOLS = {"classic": "classic", "consumer": "new protocol"}
#: Size of the group for which the latency of other clients is measured, too.
LARGEST = 500
#: Duration of each latency measurement; during rebalances, the time of two classic ones.
STEADY_S = 6.0
COMPARED = frozenset({"ottla", "kafka"})
SETTLING = (
    Figure("formed", "s", False),
    Figure("member joins", "s", False),
    Figure("member leaves", "s", False),
    Figure("slowest of these", "s", False),
    Figure("fenced", "members", False, 0),
)
BESIDE = (
    *SETTLING,
    Figure("others' p99, settled", "ms", False, 2),
    Figure("others' p99, rebalancing", "ms", False, 2),
    Figure("others' p99, times", "x", False),
    Figure("server CPU, rebalancing", "% of a core", False, 1),
)


def cases(scale: Scale) -> list[Case]:
    sizes = (10, 100) if scale.name == "quick" else (10, 100, LARGEST)
    return [_rebalance(protocol, members) for protocol in PROTOCOLS for members in sizes]


def _rebalance(protocol: str, members: int) -> Case:
    steady_s = STEADY_S if members == LARGEST else 0.0

    def run(context: CaseContext, scale: Scale) -> Measurement:
        topic, other = context.create_topic(PARTITIONS), context.create_topic(1)
        try:
            shape = {"protocol": protocol, "members": members, "partitions": PARTITIONS}
            detail = context.load("rebalance", topic, other_topic=other, steady_s=steady_s, **shape)
        finally:
            context.delete_topic(topic)
            context.delete_topic(other)
        figures = {"formed": detail["form_s"], "member joins": detail["join_s"], "member leaves": detail["leave_s"]}
        figures["slowest of these"] = detail["worst_s"]
        figures["fenced"] = detail["fenced"]
        if steady_s:
            settled, rebalancing = (median_ms(detail[when], "p99") for when in ("before", "during"))
            figures["others' p99, settled"], figures["others' p99, rebalancing"] = settled, rebalancing
            figures["others' p99, times"] = rebalancing / settled
            figures["server CPU, rebalancing"] = detail["server_cpu_s"] / detail["seconds"] * 100
        return Measurement(figures, detail)

    return Case("groups", f"{PROTOCOLS[protocol]}, {members} members", BESIDE if steady_s else SETTLING, run, COMPARED, rounds=1)
