"""Loading files into a topic."""
