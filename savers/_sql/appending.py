"""The methods of SqlSaver that append to a history."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from graphkit import Checkpoint, RunnableConfig
from graphkit.abc import BaseCheckpointSaver, ConfigLike, check_tags, check_writes
from graphkit.codec import Codec
from graphkit.errors import CheckpointCorruptionError, CheckpointNotFoundError
from savers._log.log_writer import pack_writes
from savers._sql import row_log
from savers._sql.database import Database
from savers._sql.encoded_text import encode_text
from savers._sql.maintenance import explain_damage, make_taken_error
from savers._sql.row_inserts import StaleLogError
from savers._sql.row_log import RowLog
from savers._sql.row_store import RowStore

if TYPE_CHECKING:
    from savers._log.stored_checkpoint import StoredCheckpoint

_MOST_REFUSALS: Final = 3
"""How often a row may be refused although no other writer has inserted one."""


class AppendingMethods(BaseCheckpointSaver):
    """Appends checkpoints, pending writes and tags to the histories in a database."""

    _codec: Codec
    _database: Database
    _store: RowStore

    def put(self, config: ConfigLike, checkpoint: Checkpoint, *, unique: bool = False) -> RunnableConfig:
        """As in the contract. With `unique`, replaces a checkpoint of the same id."""
        config = RunnableConfig.of(config)
        target = config.checkpoint_id

        def append(log: RowLog) -> None:
            is_present = unique and log.fd >= 0 and not log.lacks(checkpoint.id)
            log.put(checkpoint, checkpoint.id if is_present else target)

        self._append(config, append)
        return config if target is not None else config.with_check_point_id(checkpoint.id)

    def put_writes(
        self,
        config: ConfigLike,
        writes: Mapping[str, Any],
        *,
        keep: Collection[str] = (),
        early: bool = False,
    ) -> None:
        """As in the contract. Processes exclude each other while they compare and append.

        Args:
            config: names the checkpoint.
            writes: the values.
            keep: keys whose recorded values stay, if there are any.
            early: whether the checkpoint may still be to come: the writes then wait for it in the
                history. If it never comes, no reader sees them, and `compact` removes them later.
        """
        check_writes(writes)
        packed = pack_writes(self._codec, writes, row_log.MAX_PAYLOAD)
        if not packed:
            return
        config = RunnableConfig.of(config)
        checkpoint_id = config.checkpoint_id

        def choose(stored: StoredCheckpoint) -> Mapping[str, bytes]:
            kept = set(keep).intersection(stored.writes)
            return {key: value for key, value in packed.items() if key not in kept}

        def append(log: RowLog) -> None:
            stored = None
            # An early write needs no checkpoint: it is not looked for, unless the commit finds it.
            is_early = early and checkpoint_id is not None and log.fd >= 0 and log.lacks(checkpoint_id)
            if log.fd >= 0 and not is_early:
                stored = log.find(checkpoint_id)
            if stored is not None:
                new = choose(stored)
                if new:
                    log.put_packed(stored, new)
                return
            if not early or checkpoint_id is None:
                raise _make_missing_error(config)
            waiting = log.load_early().find(checkpoint_id)
            new = packed if waiting is None else choose(waiting)
            if new:
                log.put_early(checkpoint_id, new)

        self._append(config, append)

    def add_tags(self, config: ConfigLike, *tags: str) -> None:
        check_tags(tags)
        self._change_tags(config, tags, ())

    def remove_tags(self, config: ConfigLike, *tags: str) -> None:
        check_tags(tags)
        self._change_tags(config, (), tags)

    def _change_tags(self, config: ConfigLike, add: Sequence[str], remove: Sequence[str]) -> None:
        config = RunnableConfig.of(config)

        def append(log: RowLog) -> None:
            stored = log.find(config.checkpoint_id) if log.fd >= 0 else None
            if stored is None:
                raise _make_missing_error(config)
            log.put_tags(stored, add, remove)

        self._append(config, append)

    def _append(self, config: RunnableConfig, append: Callable[[RowLog], None]) -> None:
        """Append records to a history, and commit them.

        Args:
            config: names the history.
            append: appends the records; called again if another writer has changed the history.
        """
        log = self._store.shared_log(config.thread, config.checkpoint_ns)
        token = self._database.token_of(config.thread)
        with log.mutex:
            # If another writer has begun the history meanwhile, the insert is refused.
            is_fresh = log.fd < 0 and not log.is_known_absent
            if is_fresh:
                self._refresh(log)
            refusals = 0
            while True:
                known = (log.fd, log.end)
                try:
                    append(log)
                    log.commit(token)
                    break
                except StaleLogError:
                    self._check_token(config.thread, token)
                except CheckpointNotFoundError:
                    # Another process may have put the checkpoint.
                    log.discard()
                    if is_fresh:
                        raise
                except CheckpointCorruptionError as error:
                    log.close()
                    if is_fresh and not log.is_gone():
                        raise explain_damage(error) from error
                    # The history has changed since the last refresh.
                except BaseException:
                    log.discard()
                    raise
                self._refresh(log)
                is_fresh = True
                refusals = refusals + 1 if (log.fd, log.end) == known else 0
                if refusals >= _MOST_REFUSALS:
                    reason = "the row of its last record is missing, or has another checkpoint than the record"
                    raise explain_damage(CheckpointCorruptionError(log.path, log.end, reason))
            self._store.logs.account(log)

    def _refresh(self, log: RowLog) -> None:
        try:
            log.refresh()
        except CheckpointCorruptionError as error:
            raise explain_damage(error) from error

    def _check_token(self, thread_id: str, token: int | None) -> None:
        """Check that the run lock is still that of the caller.

        Raises:
            ThreadBusyError: another run has taken it, because this process was paused for longer than
                the lease.
        """
        if token is None:
            return
        row = (encode_text(thread_id), token)
        if not self._database.read(self._store.statements.select_token, row):
            raise make_taken_error(thread_id)


def _make_missing_error(config: RunnableConfig) -> CheckpointNotFoundError:
    return CheckpointNotFoundError(config.thread, f"checkpoint {config.checkpoint_id or 'at all'}")
