"""`ottla sim`: run the simulator."""
