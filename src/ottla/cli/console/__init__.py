"""`ottla console`: the web application."""
