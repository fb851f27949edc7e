"""Takes the log directories of stopped Apache Kafka brokers into a new data directory."""
