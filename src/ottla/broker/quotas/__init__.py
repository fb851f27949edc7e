"""Client quotas: which one applies to a client, what the client has used, and how long it is throttled. See ``client_quotas.py``."""
