"""Tables in and out, with each codec, compared with confluent-kafka record by record.

These cases measure the client: compare its own CPU.
"""

from __future__ import annotations

import os

from bench.cases import Case, CaseContext, Figure, Measurement, Scale

RATES = (Figure("rate", "k records/s", True, 0), Figure("client CPU", "ns/record", False, 0), Figure("server CPU", "ns/record", False, 0))
PARTITIONS = 3
VALUE_SIZE = 100
CODECS = ("none", "lz4", "zstd", "snappy", "gzip")
SENDERS = ("send_table", "confluent-kafka")
READERS = ("poll_table", "read_table", "confluent-kafka")
#: acks=all is not the subject, so the server without fsync is used.
SERVERS = frozenset({"ottla cached", "kafka"})


def cases(scale: Scale) -> list[Case]:
    codecs = CODECS if scale.name == "full" else CODECS[:3]
    sends = [_send(client, codec) for codec in codecs for client in SENDERS]
    return [*sends, *(_read(client, codec) for codec in codecs for client in READERS)]


def _send(client: str, codec: str) -> Case:
    def run(context: CaseContext, scale: Scale) -> Measurement:
        topic = context.create_topic(PARTITIONS)
        os.sync()
        try:
            shape = {"value_size": VALUE_SIZE, "codec": codec}
            return _rates(context.load("table_send", topic, client=client, **shape, seconds=scale.seconds, bytes_max=scale.bytes_max))
        finally:
            context.delete_topic(topic)

    return Case("tables, send", f"{VALUE_SIZE} B, {codec}, {client}", RATES, run, SERVERS)


def _read(client: str, codec: str) -> Case:
    def run(context: CaseContext, scale: Scale) -> Measurement:
        topic = context.create_topic(PARTITIONS)
        try:
            shape = {"value_size": VALUE_SIZE, "codec": codec}
            filled = context.load("table_send", topic, client="send_table", **shape, seconds=60.0, bytes_max=scale.fill_bytes)
            records = filled["records_total"]
            return _rates(context.load("table_read", topic, client=client, partitions=PARTITIONS, records=records, value_size=VALUE_SIZE))
        finally:
            context.delete_topic(topic)

    return Case("tables, read", f"{VALUE_SIZE} B, {codec}, {client}", RATES, run, SERVERS)


def _rates(detail: dict[str, float]) -> Measurement:
    records = detail["records"]
    figures = {
        "rate": records / detail["seconds"] / 1e3,
        "client CPU": detail["load_cpu_s"] / records * 1e9,
        "server CPU": detail["server_cpu_s"] / records * 1e9,
    }
    return Measurement(figures, detail)
