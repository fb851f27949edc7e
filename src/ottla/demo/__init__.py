"""The demo: live records through three brokers and a Spark pipeline into a table, and a check that every record was counted once.

    feed (telemetry.py, scenario.py) -> topic on three brokers (brokers.py) -> pipeline (*.toml) -> Delta table and result topic
                                                                                  verification.py compares four counts

The pipeline counts records per window and group. Its table has one row per window and group, replaced when the count changes, so the sum
over the table is the number of records. It must equal the number of acknowledged records, the number in the topic's logs, and the sum over
the last values in the result topic.
"""
