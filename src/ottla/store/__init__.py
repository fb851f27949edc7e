"""Coordination behind one port: what is kept where (layout), and the stores that keep it (embedded, memory, zookeeper)."""
