"""Histories in the tables of a database: SQLite or PostgreSQL."""
