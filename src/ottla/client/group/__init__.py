"""Group membership: both group protocols, assignors, offset commits, the coordinator."""
