"""`ottla produce`: write records to a topic."""
