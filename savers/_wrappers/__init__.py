"""Savers around another saver. Each wraps any saver, so they can be nested."""
