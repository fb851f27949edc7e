"""Groups of the consumer protocol (KIP-848): ConsumerGroupHeartbeat; the coordinator assigns partitions."""
