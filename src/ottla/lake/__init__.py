"""Files and tables beside topics, by Arrow alone: no Spark, no JVM. Pipelines on Spark share the tables (delta.py)."""
