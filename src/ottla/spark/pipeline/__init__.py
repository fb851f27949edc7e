"""Pipelines: a TOML file defines the source topic, the decoding of values, SQL steps and sinks.

config/      the file -> Pipeline (model.py), or an error with file, line and key; needs neither Spark nor a broker
decode.py    bytes of values -> typed columns
sinks.py     a topic, the console, tables and files; a batch is written exactly once if the target supports it
run.py       the Spark queries: start, monitor, stop
progress.py  progress as a live table or as JSON lines

topic --decode--> view `records` --step--> view --step--> view --> sinks
"""
