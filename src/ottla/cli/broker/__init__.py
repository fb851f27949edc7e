"""`ottla broker`: addresses, replicas, log directories and settings of brokers."""
