"""Lets Spark find ``format("ottla")`` by itself."""
