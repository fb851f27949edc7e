"""The whole broker under virtual time: seeded network, disk and store, faults on purpose, and checkers that must stay silent."""
