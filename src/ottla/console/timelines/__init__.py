"""Timelines of the brokers: reading them, and what happened in a rebalance or a transaction step by step."""
