"""Search in a topic's records, live tails, previews of values, and downloads."""
