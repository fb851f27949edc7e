"""`ottla log`: dump, verify and scrub log files."""
