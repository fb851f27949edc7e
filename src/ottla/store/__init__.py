"""Coordination behind one port: the layout of the nodes, and the stores (embedded, memory, zookeeper)."""
