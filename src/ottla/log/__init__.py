"""One partition's log over a Disk: segments, indexes, producer state, leader epochs, recovery. Synchronous, one owner, no clock."""
