"""The simulator: whole brokers under virtual time, with seeded network, disk and store, injected faults, and invariant checkers."""
