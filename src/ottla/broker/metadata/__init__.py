"""The cluster image, settings of the broker, and topics that are created automatically."""
