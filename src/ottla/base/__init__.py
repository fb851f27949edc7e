"""Words everyone shares: ids, units, options, ports. Imports nothing of ours."""
