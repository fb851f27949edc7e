"""`ottla consume`: read records of topics."""
