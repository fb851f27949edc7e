"""Group coordinator: members, generations, committed offsets, and the records that persist them."""
