"""`ottla import`: take over directories of Apache Kafka."""
