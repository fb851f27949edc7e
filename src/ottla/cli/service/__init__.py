"""`ottla service`: a broker as a service of systemd on this machine."""
