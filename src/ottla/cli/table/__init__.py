"""`ottla table`: keep tables in sync with topics."""
