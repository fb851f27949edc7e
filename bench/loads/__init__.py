"""The loads: what is thrown at a server, each in a process of its own."""
