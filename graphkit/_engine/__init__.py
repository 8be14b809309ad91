"""The engine: one loop that asks, two drivers that answer."""
