"""`ottla serve`: run brokers."""
