"""What all pages share: sessions, login, protection of changes, rendering, errors, the audit log."""
