"""From what a user writes to a plan: the builder, hooks, flattening, joins, the checks."""
