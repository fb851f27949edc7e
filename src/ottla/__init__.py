"""Ottla: a partitioned commit log that speaks the Kafka protocol."""
