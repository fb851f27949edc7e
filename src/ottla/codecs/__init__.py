"""Codecs of values: Avro and JSON from and to Arrow's column layout, compiled."""
