"""The version of Ottla, for the package, the command line, and what clients and brokers say about themselves."""

VERSION = "0.2.0"
