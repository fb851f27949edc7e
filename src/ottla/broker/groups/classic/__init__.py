"""Groups of the classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup; the group leader assigns partitions."""
