"""Write the pictures of docs/console.md: `make screenshots`, or `python tools/screenshots.py NAME...` for some of them.

Starts three brokers and a console on free ports, writes records, reads them with groups, and takes pictures with a headless Chromium.
For the picture `pipeline` it runs a Spark pipeline. Its page must show a batch and the dead letters, and its button must send them again;
otherwise the program fails.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "console")]

import chromium  # noqa: E402
import running_pipeline  # noqa: E402

from ottla.aio import Admin, Consumer, Producer  # noqa: E402
from ottla.client.admin.results import NewTopic  # noqa: E402
from serving import Serving  # noqa: E402

PICTURES = ROOT / "docs" / "images" / "console"
TOPICS = {"orders": (6, 40), "payments": (3, 15), "shipments.eu-west": (12, 25), "clicks": (24, 160), "users": (3, 3), "audit-log": (1, 1)}

PIPELINE = "pipeline"
#: Seconds until Spark has written a batch, and time between two looks.
BATCH_S, LOOK_S = 180, 2

COUNTRIES, SEED = ("DE", "FR", "SI", "IT", "JP"), 7
#: Name: path, width, height, dark, text to wait for.
SHOTS: dict[str, tuple[str, int, int, bool, str]] = {
    "overview": ("/", 1280, 860, False, "checks"),
    "topics": ("/topics?sort=-rate", 1280, 620, False, "clicks"),
    "topic": ("/topics/orders", 1280, 660, True, "all in sync"),
    "messages": ("/topics/orders/messages?filter=.customer.country+%3D+SI+and+.amount+%3E%3D+500", 1280, 940, False, "Done"),
    "record": ("/topics/orders/records/0/3", 1280, 1000, True, "offset 3"),
    "group": ("/group?id=billing", 1280, 900, False, "Assignment"),
    "reset": ("/group/reset?id=nightly-report&target=time&value=-15s", 1280, 760, False, "Preview"),
    "timelines": ("/timelines/groups?name=billing", 1280, 900, False, "generation"),
    "transactions": ("/timelines/transactions", 1280, 760, True, "committed"),
    "cluster": ("/cluster", 1280, 780, True, "Log directories"),
    "narrow": ("/topics", 390, 780, False, "clicks"),
}


async def feed(bootstrap: str, stop: threading.Event) -> None:
    """Writes records, and reads them with three groups, until it is stopped."""
    chance = random.Random(SEED)
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics([NewTopic(name, partitions, 3) for name, (partitions, _) in TOPICS.items()])
        await admin.alter_consumer_group_offsets("nightly-report", {("orders", number): 0 for number in range(6)})

    async def read(group: str, topics: list[str], pause_s: float, number: int) -> None:
        settings: dict[str, Any] = {"group_id": group, "client_id": f"{group}-{number}", "auto_offset_reset": "earliest"}
        async with Consumer(*topics, bootstrap_servers=bootstrap, **settings) as consumer:
            while not stop.is_set():
                await consumer.poll(200, 50)
                await asyncio.sleep(pause_s)

    readers = [asyncio.create_task(read("billing", ["orders", "payments"], 0.05, number)) for number in range(3)]
    readers += [asyncio.create_task(read("shipping", ["shipments.eu-west"], 0.3, number)) for number in range(2)]

    async def settle() -> None:
        async with Producer(bootstrap_servers=bootstrap, transactional_id="settlements") as producer:
            while not stop.is_set():
                async with producer.transaction():
                    for partition in range(3):
                        await producer.send("payments", b"{}", partition=partition)
                await asyncio.sleep(2)

    readers.append(asyncio.create_task(settle()))
    async with Producer(bootstrap_servers=bootstrap, compression_type="zstd") as producer:
        number = 0
        while not stop.is_set():
            for name, (_, count) in TOPICS.items():
                for _ in range(count):
                    number += 1
                    customer = f"customer-{chance.randrange(500)}"
                    items = [{"sku": f"A{chance.randrange(99)}", "quantity": chance.randrange(1, 5)} for _ in range(chance.randrange(1, 4))]
                    value = {
                        "id": number, "customer": {"id": customer, "country": chance.choice(COUNTRIES)}, "currency": "EUR",
                        "amount": round(chance.uniform(1, 900), 2), "items": items, "paid": chance.random() < 0.8,
                    }  # fmt: skip
                    headers = [("trace", b"%032x" % chance.getrandbits(128)), ("source", b"shop")]
                    await producer.send(name, json.dumps(value).encode(), customer.encode(), headers)
            await asyncio.sleep(0.25)
    await asyncio.gather(*readers)


def _shows(page: chromium.Page, text: str) -> bool:
    return text in page.text


def http_of(server: Serving) -> str:
    """The address of the server's HTTP listener."""
    line = next(line for line in server.logs().splitlines() if "/health/ready on http://" in line)
    return line.rpartition("http://")[2].split()[0]


@contextmanager
def fed(bootstrap: str) -> Iterator[None]:
    """Feeds the brokers in a thread."""
    stop = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(feed(bootstrap, stop)))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def pipeline_picture(page: chromium.Page, bootstrap: str, file: Path) -> None:
    """Runs the pipeline until its page shows a batch, takes the picture, and sends its dead letters again. Raises: TimeoutError."""
    page.size(1280, 1180)
    with running_pipeline.running(bootstrap, file):
        deadline_s = time.monotonic() + BATCH_S
        page.open(f"/pipelines/{file.stem}")
        while not running_pipeline.shows_batches(page):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"no batch after {BATCH_S} s: {page.text}\n{file.with_suffix('.log').read_text()[-2000:]}")
            time.sleep(LOOK_S)
            page.open(f"/pipelines/{file.stem}")
        page.find("main details.more summary").click()
        # The line with the process and the checkpoint has the names of the machine that makes the picture.
        page.driver.execute_script("document.querySelector('main .card p.help').remove()")
        _take(page, PIPELINE)
        page.write("confirm", running_pipeline.DEAD)
        page.press("Send again")
        sent = f"{len(running_pipeline.WRONG)} records were sent to their topics again"
        page.until(partial(_shows, page, sent), sent)
        print(f"a pipeline's page shows its batches, and {sent}")


def _take(page: chromium.Page, name: str) -> None:
    page.driver.save_screenshot(str(PICTURES / f"{name}.png"))
    print(f"{name}.png", flush=True)


def main(names: list[str]) -> int:
    """Takes the pictures with these names; all without names."""
    if why := chromium.missing():
        print(f"no pictures: {why}", file=sys.stderr)
        return 1
    chosen = names or [*SHOTS, PIPELINE]
    if unknown := sorted(set(chosen) - {*SHOTS, PIPELINE}):
        print(f"no pictures are called {', '.join(unknown)}; there are {', '.join([*SHOTS, PIPELINE])}", file=sys.stderr)
        return 2
    PICTURES.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as directory,
        Serving(Path(directory) / "data", brokers=3, arguments=["--http", "127.0.0.1:0"]) as server,
        fed(server.bootstrap) if set(chosen) & set(SHOTS) else nullcontext(),
    ):
        file = running_pipeline.pipeline_file(server.bootstrap, Path(directory))
        more = ["--http", http_of(server), "--pipeline", str(file)]
        with chromium.console(server.bootstrap.split(",")[0], *more) as url, chromium.chromium(url) as page:
            page.open("/")
            if set(chosen) & set(SHOTS):
                # Rates and the line of the overview need some measurements, the checks some seconds.
                time.sleep(45)
            for name in (name for name in SHOTS if name in chosen):
                path, width, height, dark, text = SHOTS[name]
                page.size(width, height, dark=dark)
                page.open(path)
                page.until(partial(_shows, page, text), text)
                _take(page, name)
            if PIPELINE in chosen:
                pipeline_picture(page, server.bootstrap, file)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
