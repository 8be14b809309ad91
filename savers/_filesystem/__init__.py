"""The file-system saver: one directory per thread, in it an append-only log. docs/format.md specifies the bytes."""

from savers._filesystem.saver import FileSystemSaver as FileSystemSaver

__all__ = ["FileSystemSaver"]
