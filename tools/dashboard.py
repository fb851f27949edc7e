"""Generates deploy/grafana/ottla.json, the dashboard for Grafana, from the rows below.

``--check`` only checks whether the file is up to date.
"""

import json
import sys
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent.parent / "deploy" / "grafana" / "ottla.json"
#: Grafana's grid has 24 columns.
WIDTH, HEIGHT, PER_ROW = 8, 7, 3

Panel = tuple[str, str, list[tuple[str, str]]]
#: (row, panels: title, unit, [(expression, legend)]).
ROWS: list[tuple[str, list[Panel]]] = [
    (
        "Are records safe?",
        [
            (
                "Brokers and controller",
                "short",
                [('sum(up{job="ottla"})', "brokers"), ("sum(kafka_controller_kafkacontroller_activecontrollercount)", "controllers")],
            ),
            (
                "Partitions with problems",
                "short",
                [
                    ("sum(kafka_controller_kafkacontroller_offlinepartitionscount)", "without a leader"),
                    ("sum(kafka_server_replicamanager_underminisrpartitioncount)", "below min.insync.replicas"),
                    ("sum(kafka_server_replicamanager_underreplicatedpartitions)", "under-replicated"),
                ],
            ),
            (
                "ISR changes and elections",
                "ops",
                [
                    ("sum(rate(kafka_server_replicamanager_isrshrinks_total[5m]))", "ISR shrinks"),
                    ("sum(rate(kafka_server_replicamanager_isrexpands_total[5m]))", "ISR expands"),
                    ("sum(rate(ottla_controller_leader_elections_total[5m]))", "elections"),
                ],
            ),
        ],
    ),
    (
        "Throughput",
        [
            (
                "Records in",
                "ops",
                [('topk(10, sum by (topic) (rate(kafka_server_brokertopicmetrics_messagesin_total{topic!=""}[1m])))', "{{topic}}")],
            ),
            (
                "Bytes in",
                "Bps",
                [('topk(10, sum by (topic) (rate(kafka_server_brokertopicmetrics_bytesin_total{topic!=""}[1m])))', "{{topic}}")],
            ),
            (
                "Bytes out",
                "Bps",
                [('topk(10, sum by (topic) (rate(kafka_server_brokertopicmetrics_bytesout_total{topic!=""}[1m])))', "{{topic}}")],
            ),
        ],
    ),
    (
        "Consumers",
        [
            (
                "Lag in time",
                "s",
                [("topk(10, max by (consumergroup, topic) (ottla_consumergroup_lag_seconds))", "{{consumergroup}} {{topic}}")],
            ),
            (
                "Lag in records",
                "short",
                [("topk(10, sum by (consumergroup, topic) (kafka_consumergroup_lag))", "{{consumergroup}} {{topic}}")],
            ),
            ("Groups by state", "short", [("sum by (kind, state) (ottla_groups)", "{{kind}} {{state}}")]),
        ],
    ),
    (
        "Requests",
        [
            ("Requests", "reqps", [("topk(10, sum by (request) (rate(kafka_network_requestmetrics_requests_total[1m])))", "{{request}}")]),
            (
                "Time of 99 %",
                "s",
                [
                    (
                        "histogram_quantile(0.99, sum by (request, stage, le) "
                        '(rate(ottla_request_seconds_bucket{request=~"Produce|Fetch|Metadata"}[5m])))',
                        "{{request}} {{stage}}",
                    )
                ],
            ),
            (
                "Waiting",
                "short",
                [("sum by (delayedOperation) (kafka_server_delayedoperationpurgatory_purgatorysize)", "{{delayedOperation}}")],
            ),
        ],
    ),
    (
        "Disks and store",
        [
            (
                "Sync and group commit, 99 %",
                "s",
                [
                    ("histogram_quantile(0.99, sum by (instance, le) (rate(ottla_fsync_seconds_bucket[5m])))", "sync {{instance}}"),
                    (
                        "histogram_quantile(0.99, sum by (instance, le) (rate(ottla_group_commit_seconds_bucket[5m])))",
                        "group commit {{instance}}",
                    ),
                ],
            ),
            ("Free space", "percentunit", [("ottla_log_dir_free_bytes / ottla_log_dir_total_bytes", "broker {{broker}} {{directory}}")]),
            (
                "Writes to the store, 99 %",
                "s",
                [("histogram_quantile(0.99, sum by (instance, le) (rate(ottla_store_write_seconds_bucket[5m])))", "{{instance}}")],
            ),
        ],
    ),
    (
        "Process",
        [
            (
                "Event loop",
                "percentunit",
                [("1 - kafka_network_socketserver_networkprocessoravgidle_percent", "busy {{instance}}")],
            ),
            (
                "Delay of the event loop, 99 %",
                "s",
                [("histogram_quantile(0.99, sum by (instance, le) (rate(ottla_loop_lag_seconds_bucket[5m])))", "{{instance}}")],
            ),
            (
                "Connections",
                "short",
                [("sum by (instance, listener) (kafka_server_socket_server_metrics_connection_count)", "{{instance}} {{listener}}")],
            ),
        ],
    ),
]


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS:
        panels.append({"type": "row", "title": title, "collapsed": False, "gridPos": {"h": 1, "w": 24, "x": 0, "y": y}, "panels": []})
        y += 1
        for place, panel in enumerate(row):
            panels.append(_panel(panel, x=place % PER_ROW * WIDTH, y=y + place // PER_ROW * HEIGHT))
        y += HEIGHT * -(-len(row) // PER_ROW)
    for number, one in enumerate(panels, 1):
        one["id"] = number
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}
    return {
        "uid": "ottla",
        "title": "Ottla",
        "tags": ["ottla", "kafka"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [source]},
        "panels": panels,
    }


def _panel(panel: Panel, *, x: int, y: int) -> dict[str, Any]:
    title, unit, targets = panel
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "type": "timeseries",
        "title": title,
        "datasource": source,
        "gridPos": {"h": HEIGHT, "w": WIDTH, "x": x, "y": y},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": {"fillOpacity": 10}}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": expression, "legendFormat": legend, "datasource": source}
            for number, (expression, legend) in enumerate(targets)
        ],
    }


def main() -> int:
    """Writes the file, or compares it; returns 1 when it is out of date."""
    text = json.dumps(dashboard(), indent=1) + "\n"
    if FILE.exists() and FILE.read_text() == text:
        return 0
    if "--check" in sys.argv:
        print("out of date, run tools/dashboard.py: deploy/grafana/ottla.json")
        return 1
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(text)
    print("written: deploy/grafana/ottla.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
