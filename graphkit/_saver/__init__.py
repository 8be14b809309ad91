"""The contract of a saver, and what every saver shares: pending writes, run locks, watching."""
