"""Registration of the broker in the cluster: its session with the store, controlled shutdown, replicas that must not lead."""
