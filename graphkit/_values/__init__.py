"""What a state is made of: read-only values, channels, states, and the codec that stores them. Knows no graph."""
