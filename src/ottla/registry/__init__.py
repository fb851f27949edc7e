"""A schema registry with Confluent's HTTP API and records: schemas of subjects, kept in the compacted topic ``_schemas``."""
