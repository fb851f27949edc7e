"""Code that several commands share: connections, output formats, tables, confirmation, record formats."""
