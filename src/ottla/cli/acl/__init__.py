"""`ottla acl`: list, add, remove and test access rules."""
