"""The parts of a state: read-only values, channels, states and the codec. Knows no graphs."""
