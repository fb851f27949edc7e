"""Who may do what: access rules, what each API requires, and the checks."""
