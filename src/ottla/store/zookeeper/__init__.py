"""The store over a ZooKeeper ensemble, through kazoo."""
