"""Ottla's benchmark harness: `python -m bench` measures Ottla and, beside it, a stock Apache Kafka."""
