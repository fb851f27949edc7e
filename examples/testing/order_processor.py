"""An application under test: it turns orders into invoices.

It reads orders (JSON) from one topic, writes an invoice for each to another, keyed by customer, and invalid orders to a third, with the
reason in a header. It commits an order after its invoice is written, so no order is lost. An order may be processed twice; its number in
the invoice identifies duplicates.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import Any

from ottla import Consumer, Producer


class Rejected(Exception):
    """The reason why a value is not a valid order."""


@dataclass(frozen=True, kw_only=True)
class Topics:
    """The input and output topics."""

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
        raise Rejected(f"it is not an order: {error}") from None


class OrderProcessor:
    """Runs in its own thread inside ``with``. ``settings`` are client settings, such as timeouts."""

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
        """Processes orders until it is stopped."""
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
