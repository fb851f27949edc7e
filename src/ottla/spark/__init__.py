"""Ottla for Spark: ``format("ottla")`` as source and sink, and pipelines defined by a TOML file.

Topics become DataFrames and DataFrames become topics. Data moves as Arrow record batches in both directions, without a Python object per
record. Options and columns have the names of Spark's own Kafka source, so a job migrates by changing the format's name.

    source/ sink/      the two halves of the data source, as Spark calls them: options, offsets, rows, and the client behind them
    values/            decoding of JSON, CSV, Avro and Protobuf inside the source
    pipeline/          pipeline files, decoding, SQL steps, sinks, progress
    session.py java.py a quiet local session | where Java is
    registration.py    format("ottla") in every session of this process, whichever Python is on the PATH

The broker, the client and other commands import nothing from here. Modules for options, pipeline files and checkpoints import neither
pyspark nor pyarrow, so these can be checked without them.
"""

from ottla.spark.registration import install

install()
