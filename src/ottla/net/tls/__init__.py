"""TLS: certificates from Kafka's settings, the principal of a client's certificate, and a transport over a non-blocking socket."""
