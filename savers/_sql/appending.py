"""The methods of SqlSaver that append to a history."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from graphkit import Checkpoint, RunnableConfig
from graphkit.abc import BaseCheckpointSaver, ConfigLike, check_tags, check_writes
from graphkit.codec import Codec
from graphkit.errors import CheckpointCorruptionError, CheckpointNotFoundError
from savers._log.log_writer import check_fit, pack_writes
from savers._log.stored_checkpoint import StoredCheckpoint
from savers._sql import row_log
from savers._sql.database import Database
from savers._sql.encoded_text import encode_text
from savers._sql.maintenance import explain_damage, make_taken_error
from savers._sql.row_inserts import StaleLogError
from savers._sql.row_log import RowLog
from savers._sql.row_store import RowStore

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

        def append(log: RowLog) -> bool:
            is_present = unique and log.fd >= 0 and not log.lacks(checkpoint.id)
            is_usual = log.put(checkpoint, checkpoint.id if is_present else target)
            return is_usual and not unique

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
        config = RunnableConfig.of(config)
        self._put_packed(config, config.checkpoint_id, packed, keep, early=early)

    def _put_langgraph_writes(
        self,
        history: RunnableConfig,
        id: str | None,
        packed: Mapping[str, bytes],
        keep: Collection[str],
    ) -> None:
        """Store packed writes of LangGraph, which may come before their checkpoint; see `put_writes`.

        No config is made for the checkpoint, and no key is looked up among those that graphkit reads.
        """
        check_fit(packed, row_log.MAX_PAYLOAD)
        self._put_packed(history, id, packed, keep, early=True)

    def _put_packed(
        self,
        config: RunnableConfig,
        id: str | None,
        packed: Mapping[str, bytes],
        keep: Collection[str],
        *,
        early: bool,
    ) -> None:
        """Store pending writes that `pack_writes` packed, of the checkpoint with an id or the latest.

        The other arguments are those of `put_writes`.
        """
        if not packed:
            return

        def find(log: RowLog) -> StoredCheckpoint | None:
            # An early write needs no checkpoint: it is not looked for, unless the commit finds it.
            is_early = early and id is not None and log.fd >= 0 and log.lacks(id)
            return None if is_early or log.fd < 0 else log.find(id)

        def append(log: RowLog) -> bool:
            stored = log.last_checkpoint
            is_last = stored is not None and stored.id == id and not stored.is_replacement
            if not is_last:
                stored = find(log)
            if stored is not None:
                new = _choose_new(packed, keep, stored.writes)
                if new:
                    log.put_packed(stored, new)
            elif early and id is not None:
                waiting = log.load_early().find(id)
                new = packed if waiting is None else _choose_new(packed, keep, waiting.writes)
                if new:
                    log.put_early(id, new)
            else:
                raise _make_missing_error(config, id)
            return stored is log.last_checkpoint

        self._append(config, append)

    def add_tags(self, config: ConfigLike, *tags: str) -> None:
        check_tags(tags)
        self._change_tags(config, tags, ())

    def remove_tags(self, config: ConfigLike, *tags: str) -> None:
        check_tags(tags)
        self._change_tags(config, (), tags)

    def _change_tags(self, config: ConfigLike, add: Sequence[str], remove: Sequence[str]) -> None:
        config = RunnableConfig.of(config)

        def append(log: RowLog) -> bool:
            stored = log.find(config.checkpoint_id) if log.fd >= 0 else None
            if stored is None:
                raise _make_missing_error(config, config.checkpoint_id)
            log.put_tags(stored, add, remove)
            return False

        self._append(config, append)

    def _append(self, config: RunnableConfig, append: Callable[[RowLog], bool]) -> None:
        """Append records to a history, and commit them.

        Args:
            config: names the history.
            append: appends the records; called again if another writer has changed the history.
                Returns whether that has loaded nothing, as in the usual step of a run.
        """
        log = self._store.shared_log(config.thread, config.checkpoint_ns)
        token = self._database.token_of(config.thread)
        with log.mutex:
            # If another writer has begun the history meanwhile, the insert is refused.
            is_fresh = log.in_doubt or (log.fd < 0 and not log.is_known_absent)
            if is_fresh:
                self._refresh(log)
            refusals = 0
            while True:
                known = (log.fd, log.end)
                try:
                    is_usual = append(log)
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
            logs = self._store.logs
            account = logs.account_usual_put if is_usual else logs.account
            account(log)

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


def _choose_new(packed: Mapping[str, bytes], keep: Collection[str], recorded: Mapping[str, int]) -> Mapping[str, bytes]:
    """Return the pending writes without those whose recorded value stays."""
    if not recorded:
        return packed
    kept = set(keep).intersection(recorded)
    return {key: value for key, value in packed.items() if key not in kept}


def _make_missing_error(config: RunnableConfig, id: str | None) -> CheckpointNotFoundError:
    return CheckpointNotFoundError(config.thread, f"checkpoint {id or 'at all'}")
