"""Small requests: round trips a second, CPU per request, and latency at a steady 1,000 requests a second."""

from __future__ import annotations

from bench.cases import Case, CaseContext, Figure, Measurement, Scale

RATE = 1000.0
STEADY_CONNECTIONS = 10
ROUND_TRIPS = (Figure("rate", "requests/s", True, 0), Figure("server CPU", "µs/request", False, 1))
LATENCY = (Figure("p50", "ms", False, 3), Figure("p99", "ms", False, 3))


def cases(scale: Scale) -> list[Case]:
    found = [_round_trips(request, connections) for request in ("metadata", "produce acks=1") for connections in (1, 10)]
    return found + [_steady(request) for request in ("metadata", "produce acks=1", "produce acks=all")]


def _round_trips(request: str, connections: int) -> Case:
    def run(context: CaseContext, scale: Scale) -> Measurement:
        topic = context.create_topic(1)
        try:
            detail = context.load("round_trips", topic, request=request, connections=connections, seconds=scale.seconds)
        finally:
            context.delete_topic(topic)
        requests = detail["requests"]
        return Measurement({"rate": requests / detail["seconds"], "server CPU": detail["server_cpu_s"] / requests * 1e6}, detail)

    spread = "1 connection" if connections == 1 else f"{connections} connections"
    return Case("round trips", f"{request}, {spread}", ROUND_TRIPS, run)


def _steady(request: str) -> Case:
    def run(context: CaseContext, scale: Scale) -> Measurement:
        topic = context.create_topic(1)
        try:
            detail = context.load(
                "steady", topic, request=request, connections=STEADY_CONNECTIONS, rate=RATE, seconds=max(3.0, scale.seconds)
            )
        finally:
            context.delete_topic(topic)
        return Measurement({"p50": detail["p50_ms"], "p99": detail["p99_ms"]}, detail)

    return Case("latency at 1,000/s", request, LATENCY, run)
