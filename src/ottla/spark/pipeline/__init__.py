"""Pipelines: a TOML file that says which topic is read, how its values decode, what SQL runs on them and where the results go.

model.py     what a file says, as data
file.py, *_file.py   the file -> Pipeline, or an error that names file, line and key; needs neither Spark nor a broker
decode.py    bytes of values -> typed columns
sinks.py     where results go: a topic, the console, a Delta table (delta.py, ottla.lake), each batch at most once where the target can tell
run.py       the Spark queries: start, watch, stop
progress.py  what happens, as a live table or as JSON lines

topic --decode--> view `records` --step--> view --step--> view --> sinks
"""
