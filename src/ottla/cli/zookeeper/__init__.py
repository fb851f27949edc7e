"""`ottla zookeeper`: run a local ZooKeeper ensemble."""
