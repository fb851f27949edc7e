"""Metrics of a server: counters and histograms that the event loop keeps, and what collects, serves and pushes them."""
