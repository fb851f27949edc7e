"""The controller: the one broker that writes topics, leaders and settings to the store, fenced by the controller epoch."""
