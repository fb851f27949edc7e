"""Measurements of the cluster in the background: rates, sizes and the checks of `ottla doctor`."""
