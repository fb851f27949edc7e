"""Log directories: start-up, creation and removal of logs, retention, compaction, scrubs."""
