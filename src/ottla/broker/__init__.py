"""The broker as pure machines: events in, effects out; no clock, socket, thread or randomness of its own."""
