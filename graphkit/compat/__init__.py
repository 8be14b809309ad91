"""The spellings of other systems, on top of graphkit: `go_agents` and `hive`. graphkit itself never imports them."""
