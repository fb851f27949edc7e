"""`ottla tls`: a private authority and certificates for a small cluster."""
