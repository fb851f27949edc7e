"""`ottla token`: delegation tokens."""
