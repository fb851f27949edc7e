"""SASL mechanisms, of servers and of clients, as machines without I/O."""
