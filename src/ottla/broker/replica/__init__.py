"""Replicas: leader, follower, fetchers, the ISR, reads, throttles, fetch sessions."""
