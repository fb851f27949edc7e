"""The loads on a server, each in its own process."""
