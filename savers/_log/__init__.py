"""The log of one history: its records, and what reads and appends them, wherever the bytes are kept.

A log is a sequence of bytes that only grows at its end; docs/format.md specifies it. The file saver
keeps a log in a file, the SQL savers keep one in the rows of a table, a record in each, and the saver
of objects in numbered segments. This package knows none of them: `LogBytes` reads and appends bytes
at offsets, and says what other writers have done.
"""
