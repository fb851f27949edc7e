"""`ottla user`: users and their SCRAM credentials."""
