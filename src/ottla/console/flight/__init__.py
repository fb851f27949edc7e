"""Flight records: reading them, and replaying them in a process of their own."""
