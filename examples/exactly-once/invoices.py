"""Writes an invoice for each order, exactly once, as any number of processes: `python invoices.py NAME`, with another NAME each.

Kill it at any time. Its open transaction is aborted, and the next process goes on from the last commit, so for consumers at read_committed
no invoice is missing and none is there twice. An order that is not valid goes to the topic `rejected-orders`, in the same transaction.
"""

from __future__ import annotations

import json
import os
import sys

import ottla
from ottla import ConsumerRecord, ProducerRecord


def invoice(order: ConsumerRecord) -> bytes:
    """The value of the invoice. Its key is that of the order. Raises: ValueError, KeyError, TypeError if the order is not valid."""
    fields = json.loads(order.value)
    return json.dumps({"order": fields["id"], "cents": fields["count"] * fields["price_cents"]}).encode()


def reject(order: ConsumerRecord, error: Exception) -> ProducerRecord:
    """A record with the order and the reason."""
    return ProducerRecord("rejected-orders", order.value, order.key, [("reason", repr(error).encode())])


def main(name: str) -> None:
    processor = ottla.process(
        "orders",
        group="billing",
        to="invoices",
        on_error=reject,
        # The next process of this name ends the transaction of a killed one at once, and takes over its partitions without a rebalance.
        group_instance_id=name,
        bootstrap_servers=os.environ.get("OTTLA_BOOTSTRAP_SERVERS", "127.0.0.1:9092"),
    )
    print(f"{processor(invoice)} orders were processed")


if __name__ == "__main__":
    main(sys.argv[1])
