"""A Spark pipeline that runs in a process of its own, for pictures: rows arrive all the time, and some are dead letters.

`tools/screenshots.py` shows it in a browser and sends its dead letters again. No test starts it, because Spark needs half a minute of two
processors for its first batch.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import chromium

from ottla import Admin, NewTopic, Producer

TOPIC, DEAD, SLOW = "visits", "visits-dead", "visits-slow"
#: Values that are no JSON of a visit.
WRONG = (b"GET /index.html", b'{"user": "ann", "page": "/cart", "ms": "fast"}', b"-")
PAUSE_S, RECORDS = 0.2, 60
END_S = 60
#: Of a query on the page: name, batch, duration, rows in per second, and others.
QUERY_COLUMNS = 9
FILE = """\
bootstrap = "{bootstrap}"
checkpoint = "{directory}/checkpoint"
trigger = "2 seconds"

[source]
topic = "{topic}"

[decode]
format = "json"
fields = {{ user = "string", page = "string", ms = "int" }}
bad_records = "dead_letter"

[[step]]
name = "slow"
sql = "SELECT user, page, ms FROM records WHERE ms > 200"

[dead_letters]
topic = "{dead}"

[[sink]]
type = "topic"
topic = "{slow}"
"""


def pipeline_file(bootstrap: str, directory: Path) -> Path:
    """Creates the topics and writes the file."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(TOPIC, 3, 1), NewTopic(DEAD, 1, 1), NewTopic(SLOW, 1, 1)])
    file = directory / "visits.toml"
    file.write_text(FILE.format(bootstrap=bootstrap, directory=directory, topic=TOPIC, dead=DEAD, slow=SLOW))
    return file


@contextmanager
def running(bootstrap: str, file: Path) -> Iterator[None]:
    """Runs the pipeline, and writes visits meanwhile."""
    ended = threading.Event()
    feeder = threading.Thread(target=_feed, args=(bootstrap, ended))
    environment = {**os.environ, "PYTHONPATH": str(chromium.ROOT / "src")}
    command = [sys.executable, "-m", "ottla", "pipeline", "run", str(file), "-o", "json"]
    with (file.with_suffix(".log")).open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        feeder.start()
        try:
            yield
        finally:
            ended.set()
            feeder.join()
            process.send_signal(signal.SIGINT)
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _feed(bootstrap: str, ended: threading.Event) -> None:
    number = 0
    with Producer(bootstrap_servers=bootstrap) as producer:
        for value in WRONG:
            producer.send(TOPIC, value, b"wrong")
        while not ended.wait(PAUSE_S):
            for _ in range(RECORDS):
                number += 1
                visit = {"user": f"u{number % 97}", "page": f"/p{number % 13}", "ms": number * 37 % 400}
                producer.send(TOPIC, json.dumps(visit).encode(), b"%d" % (number % 97))


def shows_batches(page: chromium.Page) -> bool:
    """Whether the page of the pipeline shows a finished batch with rows per second, and all wrong records as dead letters."""
    text = page.text
    if "running" not in text or text.count(" at offset ") < len(WRONG):
        return False
    columns = [[cell.text for cell in row.find_elements("css selector", "th, td")] for row in page.all("main table tbody tr")]
    return any(len(row) == QUERY_COLUMNS and row[1].isdecimal() and row[3] not in ("–", "0/s") for row in columns)
