"""Connections to brokers, cluster metadata, request routing, retry backoff."""
