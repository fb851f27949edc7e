"""Chaos tests: faults in a real cluster of real processes while clients work; `python -m chaos` runs them."""
