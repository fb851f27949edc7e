"""Checks of a cluster's health: facts that an admin client gathers, and pure functions from facts to findings."""
