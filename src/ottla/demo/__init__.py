"""The demonstration: live records through a three-broker server and a Spark pipeline into a table, and a count that must come out even.

    feed (telemetry.py, weblog.py) -> topic on three brokers (brokers.py) -> pipeline (*.toml) -> Delta table and result topic
                                                                                  verdict.py compares the four counts

Every record that a broker acknowledged is counted in exactly one row of the table: the pipeline counts records per window and group, its
table holds one row per window and group, replaced when the count changes, so the sum over the table is the number of records. It is
compared with what the producer had acknowledged, with the ends of the topic's logs, and with the newest values in the result topic.
"""
