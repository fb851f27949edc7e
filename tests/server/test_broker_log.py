"""The log of a server: lines, formats, levels, slow requests."""

import io
import json
import logging
import sys
from typing import Any

import pytest

from ottla.base.ids import ConnectionId
from ottla.base.log_levels import LogLevel
from ottla.broker import effects, events
from ottla.server import broker_log
from ottla.server.metrics.histogram import BUCKETS, Histogram, bound_s
from ottla.server.metrics.request_times import LINES_MAX, RequestTimes
from ottla.wire.messages.fetch import FetchRequest
from ottla.wire.messages.join_group import JoinGroupRequest
from ottla.wire.messages.produce import ProduceRequest


@pytest.fixture
def log(changed_logging: None) -> io.StringIO:
    """What a server logs, as text; a test may change the formatter."""
    stream = io.StringIO()
    broker_log.set_up("text", LogLevel.INFO, logging.StreamHandler(stream))
    return stream


def line(level: LogLevel = LogLevel.INFO, message: str = "became leader of t-0", **fields: Any) -> effects.Log:
    return effects.Log(level=level, logger="ottla.replica", message=message, fields=fields)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "no_color", "red"), [(Terminal(), "", True), (Terminal(), "1", False), (io.StringIO(), "", False)])
def test_warnings_are_red_on_a_terminal(
    log: io.StringIO, monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, no_color: str, red: bool
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream)
    broker_log.set_up("text", LogLevel.INFO)
    broker_log.write(line(), broker_id=1)
    broker_log.write(line(LogLevel.WARNING, "listening on every address"), broker_id=1)
    usual, warning = stream.getvalue().splitlines()
    assert "\x1b" not in usual
    assert (warning.startswith(broker_log.RED) and warning.endswith(broker_log.PLAIN)) is red


def test_a_line_has_time_level_logger_message_and_fields(log: io.StringIO) -> None:
    broker_log.write(line(epoch=3, isr=[1, 2], note="two words"), broker_id=1)
    stamp, rest = log.getvalue().rstrip("\n").split(" ", 1)
    assert rest == 'INFO ottla.replica: became leader of t-0  broker=1 epoch=3 isr=1,2 note="two words"'
    assert len(stamp) == len("2026-01-31T12:00:00.123Z") and stamp.endswith("Z")


def test_json_lines_have_the_same_fields(log: io.StringIO) -> None:
    logging.getLogger().handlers[0].setFormatter(broker_log.JsonFormatter())
    broker_log.write(line(epoch=3, isr=[1, 2]), broker_id=1)
    content = json.loads(log.getvalue())
    assert content.pop("time").endswith("Z")
    assert content == {
        "level": "INFO", "logger": "ottla.replica", "message": "became leader of t-0", "broker": 1, "epoch": 3, "isr": [1, 2],
    }  # fmt: skip


@pytest.mark.parametrize("name", ["a\nb", "a\r\nb", "a\x1b[31mb", "a\u2028b", "a\x85b"])
def test_a_client_cannot_forge_a_line(log: io.StringIO, name: str) -> None:
    broker_log.write(line(message=f"member {name} joined", client_id=name), broker_id=1)
    text = log.getvalue()
    assert len(text.splitlines()) == 1 and "\x1b" not in text


def test_long_texts_are_shortened(log: io.StringIO) -> None:
    broker_log.write(line(message="x" * 40_000, client_id="y" * 40_000), broker_id=1)
    assert len(log.getvalue()) < 3 * broker_log.TEXT_MAX


def test_a_traceback_follows_its_line_and_is_a_field_in_json(log: io.StringIO) -> None:
    try:
        raise ValueError("unforeseen")
    except ValueError:
        logging.getLogger("ottla.server").exception("it failed")
    assert "it failed\nTraceback" in log.getvalue()
    log.truncate(0), log.seek(0)
    logging.getLogger().handlers[0].setFormatter(broker_log.JsonFormatter())
    logging.getLogger("ottla.server").error("it failed", exc_info=ValueError("unforeseen"))
    assert "ValueError: unforeseen" in json.loads(log.getvalue())["exception"]


def test_levels_are_inherited_and_changed_while_the_process_runs(log: io.StringIO) -> None:
    debug = effects.Log(level=LogLevel.DEBUG, logger="ottla.group", message="detail")
    broker_log.write(debug, broker_id=1)
    assert log.getvalue() == ""
    broker_log.set_levels({"ottla.group": LogLevel.DEBUG})
    broker_log.write(debug, broker_id=1)
    assert "DEBUG ottla.group: detail" in log.getvalue()
    assert broker_log.levels() == {"root": LogLevel.INFO, "ottla.group": LogLevel.DEBUG}
    broker_log.set_levels({"ottla.group": None, "ottla": LogLevel.ERROR})
    broker_log.write(line(LogLevel.WARNING), broker_id=1)
    assert log.getvalue().count("\n") == 1
    broker_log.write_always("counters")
    assert log.getvalue().endswith("INFO ottla.server: counters\n")


def test_a_logger_that_anyone_can_make_write_is_limited() -> None:
    now = [100.0]
    limit = broker_log.LineLimit(3, clock=lambda: now[0])

    def passes() -> str | None:
        record = logging.LogRecord("ottla.net", logging.INFO, "", 0, "closing %s", ("it",), None)
        return record.getMessage() if limit.filter(record) else None

    assert [passes() for _ in range(5)] == ["closing it"] * 3 + [None] * 2
    now[0] += 1
    assert passes() == "closing it (2 lines before it were left out)"
    assert passes() == "closing it"


def test_clients_are_silent_without_a_configuration() -> None:
    import subprocess

    program = "import logging, ottla.client; logging.getLogger('ottla.client').warning('hello')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


# Times of requests.


def call(body: Any = None, key: int = 0, **fields: Any) -> events.RequestArrived[Any]:
    body = ProduceRequest() if body is None else body
    return events.RequestArrived(
        connection=ConnectionId(1),
        correlation_id=1,
        api_key=key,
        api_version=9,
        client_id="c",
        body=body,
        arrived_ns=1_000,
        **fields,
    )


def test_times_are_counted_by_api_and_by_whether_the_request_waited() -> None:
    times = RequestTimes(1, -1)
    at_once, waited = call(), call()
    times.handling = at_once
    times.answered(at_once, 1_000 + 50_000)
    times.handling = None
    times.answered(waited, 1_000 + 10_000_000)
    assert (sum(times.local[0].counts), times.local[0].sum_ns) == (1, 50_000)
    assert (sum(times.remote[0].counts), times.remote[0].sum_ns) == (1, 10_000_000)


def test_times_of_throttled_requests_are_counted_by_api() -> None:
    times = RequestTimes(1, -1)
    for api_key, throttle_ms in ((0, 20), (0, 30), (1, 5)):
        times.throttled(api_key, throttle_ms)
    assert {key: (sum(found.counts), found.sum_ns) for key, found in times.throttle.items()} == {0: (2, 50_000_000), 1: (1, 5_000_000)}


def test_buckets_are_powers_of_two_and_the_last_has_the_rest() -> None:
    histogram = Histogram()
    for ns in (0, 16_383, 16_384, 1_000_000, 10**13):
        histogram.observe(ns)
    assert (histogram.counts[0], histogram.counts[1], histogram.counts[-1]) == (2, 1, 1)
    assert bound_s(0) == pytest.approx(16.384e-6) and bound_s(BUCKETS - 2) > 30
    assert Histogram().quantile_s(0.5) == 0.0


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
def test_quantiles_are_right_within_a_bucket(share: float) -> None:
    histogram = Histogram()
    for ms in range(1, 1_001):
        histogram.observe(ms * 1_000_000)
    assert share / 2 < histogram.quantile_s(share) < share * 2


def test_slow_requests_are_logged_with_who_sent_them(log: io.StringIO) -> None:
    times = RequestTimes(7, 100)
    times.answered(call(), 1_000 + 150_000_000)
    assert "INFO ottla.request: Produce took 150 ms  broker=7 api=Produce version=9 ms=150 waited=True size=0 client_id=c" in log.getvalue()
    times.answered(call(), 1_000 + 99_000_000)
    assert log.getvalue().count("\n") == 1


def test_time_that_a_client_allows_is_not_slow(log: io.StringIO) -> None:
    times = RequestTimes(7, 100)
    times.answered(call(FetchRequest(max_wait_ms=500), 1), 1_000 + 550_000_000)
    times.answered(call(JoinGroupRequest(), 11), 1_000 + 60_000_000_000)
    assert log.getvalue() == ""
    times.answered(call(FetchRequest(max_wait_ms=500), 1), 1_000 + 650_000_000)
    assert "Fetch took 650 ms" in log.getvalue()


def test_lines_about_slow_requests_are_limited_and_the_others_counted(log: io.StringIO) -> None:
    times = RequestTimes(7, 100)
    times.tick(100_000)
    for _ in range(LINES_MAX + 5):
        times.answered(call(), 1_000 + 150_000_000)
    assert log.getvalue().count("took") == LINES_MAX
    times.tick(200_000)
    assert "5 more requests were slow in the last 60 s" in log.getvalue()
