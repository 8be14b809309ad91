"""The log of one history: its records, and what reads and appends them, wherever the bytes are kept.

A log is a sequence of bytes that only grows at its end; docs/format.md specifies it. The file saver
keeps a log in a file, the SQL savers keep one in the rows of a table, a record in each. This package
knows neither: it reads ranges of bytes through a `ByteSource`, and leaves to its subclasses how a
log is opened, how a record is appended and when it is on the disk.
"""
