"""Benchmarks: `python -m bench` measures Ottla and a stock Apache Kafka side by side."""
