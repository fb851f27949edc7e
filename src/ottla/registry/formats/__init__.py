"""Types of schemas: Avro, JSON Schema and Protobuf. Each parses, prints and compares schemas."""
