"""Decoding record values into Spark columns."""
