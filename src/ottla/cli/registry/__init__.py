"""`ottla registry`: serves a schema registry, and lists, shows, registers, checks and deletes schemas."""
