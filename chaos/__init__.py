"""Chaos: a real cluster of real processes, to which bad things are done while clients work; `python -m chaos` runs it."""
