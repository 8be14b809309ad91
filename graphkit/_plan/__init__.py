"""A graph that has been checked: its topology, schema and options, as a run uses them."""
