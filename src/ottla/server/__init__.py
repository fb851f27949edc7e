"""The shell around a broker: real files, sockets, clocks and threads."""
