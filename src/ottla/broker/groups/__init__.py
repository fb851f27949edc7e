"""Consumer groups: members, generations, committed offsets, and the records in which they outlive a crash."""
