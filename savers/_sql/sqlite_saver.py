"""SqliteSaver: checkpoints in one SQLite file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, final

from savers._cipher import Cipher, check_cipher
from savers._compression import Compression
from savers._options import Fsync, parse_fsync, parse_lock_timeout
from savers._sql.saver import SqlSaver
from savers._sql.sqlite_database import SqliteDatabase


@final
class SqliteSaver(SqlSaver):
    """Stores the history of each thread in rows of one SQLite file.

    When `put` returns, the checkpoint survives power loss (`fsync="always"`), power loss except for
    the last seconds (`fsync=seconds`), or the death of the process (`fsync="never"`; a power loss may
    then damage the file). A put inserts what changed: it costs the same after 10 and after 100,000
    checkpoints. Any number of threads, saver objects and processes may use a file at once, on a local
    file system. Ports the `sqlite` checkpointer of Petal.
    """

    def __init__(
        self,
        db_file: str | os.PathLike[str],
        *,
        fsync: Fsync = "always",
        lock_timeout: float = 10.0,
        types: Sequence[type] = (),
        compression: Literal["zlib", "zstd"] | Compression | None = "zlib",
        cipher: Cipher | None = None,
    ) -> None:
        """Name a database; the first use creates the file, its directories and its tables.

        Args:
            db_file: the path of the file. Tables of other programs in it are left alone.
            fsync: when to wait for the disk: "always" at each put, "never", or after this many
                seconds.
            lock_timeout: how long a run waits for another one on the same thread, and a writer for
                other writers, in seconds.
            types: application types that states may hold; see `register_types`.
            compression: as for FileSystemSaver.
            cipher: as for FileSystemSaver. The ids of threads and checkpoints, the statuses of threads, times
                and sizes stay readable in columns. What the saver deletes or replaces is overwritten.

        Raises:
            CheckpointerConfigurationError: an argument is wrong, or SQLite is older than 3.40.
            MissingDependencyError: `zstd` or `cipher` without the package of that extra.
        """
        fsync = parse_fsync(fsync)
        lock_timeout = parse_lock_timeout(lock_timeout)
        self._fsync = fsync
        super().__init__(
            SqliteDatabase(db_file, fsync=fsync, lock_timeout=lock_timeout, overwrites_deleted=cipher is not None),
            types=types,
            compression=compression,
            lock_timeout=lock_timeout,
            cipher=cipher,
        )

    @property
    def db_file(self) -> str:
        """The path of the file, absolute."""
        return self._database.path

    @classmethod
    def check_options(cls, *arguments: Any, **options: Any) -> None:
        """Check arguments of the constructor; its errors. Nothing is opened or created."""
        check_cipher(options.pop("cipher", None))
        cls(*arguments, **options)

    checkOptions = check_options

    def opener(self) -> Callable[[], SqliteSaver]:
        """Return a function that opens the same file with the same types, in any process.

        It contains a `cipher` as that of FileSystemSaver does.
        """
        return partial(
            SqliteSaver,
            self._database.path,
            fsync=self._fsync,
            **self._list_options(),
        )
