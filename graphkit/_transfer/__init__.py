"""How threads are read, compared and copied, from any saver to any other."""
