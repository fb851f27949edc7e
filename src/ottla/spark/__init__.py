"""Ottla for Spark: ``format("ottla")`` as source and sink, and pipelines written as one TOML file.

Topics become DataFrames and DataFrames become topics, as record batches of Arrow in both directions: no Python object is made per record.
Names of options and columns are those of Spark's own Kafka source, so that a job moves over by changing one word.

    options.py offsets.py    what the user asked for | arithmetic on ranges of offsets: pure, no Spark, no I/O
    log_access.py            the seam to ottla.client: offsets, byte ranges in, batches out
    columns.py               wire batches -> Arrow columns, Arrow columns -> wire batches
    source.py sink.py        the two halves of the data source, as Spark calls them
    session.py java.py       a quiet local session | where Java is
    pipeline/                files, decoding, SQL steps, sinks, progress

    registration.py          format("ottla") in every session of this process, whichever Python is on the PATH

Nothing here is imported by the broker, the client or the command line's other commands. pyspark and pyarrow are imported by the modules
that need them, so options and pipeline files can be checked without either.
"""

from ottla.spark.registration import install

install()
