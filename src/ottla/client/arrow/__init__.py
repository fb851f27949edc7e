"""Arrow tables from and to records."""
