"""`ottla quota`: how much users, client ids and addresses may use."""
