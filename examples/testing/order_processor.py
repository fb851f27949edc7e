"""An application to be tested: it turns orders into invoices.

It reads orders (JSON) from one topic, writes an invoice for each to another, keyed by customer, and what is no order to a third, with the
reason in a header. An order counts as done when its invoice is written, so none is lost, whatever happens to the process or the broker; one
may be done twice, and the invoice has the order's number, so that whoever books it can tell.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import Any

from ottla import Consumer, Producer


class Rejected(Exception):
    """Why something is no order."""


@dataclass(frozen=True, kw_only=True)
class Topics:
    """Where orders come from and what is made of them goes."""

    orders: str = "orders"
    invoices: str = "invoices"
    rejected: str = "rejected"


def invoice(data: bytes | None) -> dict[str, Any]:
    """The invoice for an order. Raises: Rejected."""
    try:
        order = json.loads(data or b"")
        total = sum(line["price_cents"] * line["count"] for line in order["lines"])
        return {"order": order["id"], "customer": order["customer"], "total_cents": total}
    except json.JSONDecodeError:
        raise Rejected("it is not JSON") from None
    except (KeyError, TypeError) as error:
        raise Rejected(f"it is no order: {error}") from None


class OrderProcessor:
    """Runs in a thread of its own inside of ``with``. ``settings`` are a client's: time-outs, for instance."""

    def __init__(self, bootstrap_servers: str, topics: Topics, *, group_id: str = "billing", **settings: Any) -> None:
        self._settings = {"bootstrap_servers": bootstrap_servers, **settings}
        self._topics = topics
        self._group_id = group_id
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self.run, name="order-processor")

    def __enter__(self) -> OrderProcessor:
        self._thread.start()
        return self

    def __exit__(self, *of_what: object) -> None:
        self._stopping.set()
        self._thread.join()

    def run(self) -> None:
        """Works until it is asked to stop."""
        reading = {"group_id": self._group_id, "auto_offset_reset": "earliest", "enable_auto_commit": False}
        with Producer(**self._settings) as producer, Consumer(self._topics.orders, **reading, **self._settings) as consumer:
            while not self._stopping.is_set():
                records = consumer.poll(timeout_ms=100)
                written = [self._process(producer, record.value) for record in records]
                for one in written:
                    one.result()
                if written:
                    consumer.commit()

    def _process(self, producer: Producer, data: bytes | None) -> Any:
        try:
            made = invoice(data)
        except Rejected as error:
            return producer.send(self._topics.rejected, data, headers=[("reason", str(error).encode())])
        return producer.send(self._topics.invoices, json.dumps(made).encode(), key=made["customer"].encode())
