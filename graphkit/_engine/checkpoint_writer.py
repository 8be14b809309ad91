"""How what a run saves gets into its savers: at once, or in the background; and what a failure does to the run.

In the background, puts wait in a bounded queue and are done by one thread, in order. The first that fails is the last
that is done: its error comes back at the next save, or when the run stands still, so the history is a prefix of what
happened. Everything is flushed before a run hands out its last item, and before anything is read.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from queue import Queue
from typing import Any, Final, final

from graphkit._engine.requests import Record, Save
from graphkit._plan.compile_config import CompileConfig
from graphkit._records.checkpoint import Checkpoint
from graphkit.errors import CheckpointerError

_BOUND: Final = 64
"""How many puts may wait in the background. A run that is faster than its disk then waits for it."""
_LOG: Final = logging.getLogger("graphkit.engine")

Tell = Callable[[str, Mapping[str, Any]], None]


@final
class CheckpointWriter:
    """Stores for one run."""

    def __init__(self, options: CompileConfig, tell: Tell, *, is_update: bool) -> None:
        """Prepare it; what an update of a state stores is stored at once, or it fails."""
        self.tell = tell
        self.raises = is_update or options.on_save_error == "raise"
        self.line = None if is_update or options.durability != "async" else _Line(self.failed)

    def save(self, save: Save) -> Checkpoint | None:
        """Append a checkpoint; None if it failed and the run is to go on."""
        checkpoint = checkpoint_of(save)
        if self.line is not None:
            self.line.add(lambda: save.saver.put(save.config, checkpoint), what(save))
            return checkpoint
        try:
            save.saver.put(save.config, checkpoint)
        except (CheckpointerError, OSError) as error:
            self.failed(error, what(save))
            return None
        return checkpoint

    def record(self, record: Record) -> None:
        """Record values beside a checkpoint."""
        if self.line is not None:
            self.line.add(lambda: record.saver.put_writes(record.config, record.writes), what(record))
            return
        try:
            record.saver.put_writes(record.config, record.writes)
        except (CheckpointerError, OSError) as error:
            self.failed(error, what(record))

    def flush(self) -> None:
        """Wait until everything is stored.

        Raises:
            CheckpointerError: something was not.
        """
        if self.line is not None:
            self.line.flush()

    def close(self) -> None:
        """End the background thread, everything stored that can be. Errors were told before, or are told now."""
        if self.line is not None:
            self.line.close()

    def failed(self, error: Exception, lost: str) -> None:
        """Make of a failure what the options say.

        Raises:
            Exception: the error itself, if a failure to save ends a run.
        """
        self.tell("checkpoint.fail", {"error": f"{type(error).__name__}: {error}", "what": lost})
        if self.raises:
            raise error
        _LOG.warning("%s was not stored, and the run goes on: %s", lost, error)


@final
class _Line:
    """One thread that does what is added, in order."""

    def __init__(self, failed: Callable[[Exception, str], None]) -> None:
        self.failed = failed
        self.queue: Queue[tuple[Callable[[], object], str] | None] = Queue(_BOUND)
        self.error: BaseException | None = None
        """The first failure. Nothing is done after it, so it is raised by whatever comes, and not only once: a node may
        have taken it for its own."""
        self.was_raised = False
        self.thread: threading.Thread | None = None

    def add(self, put: Callable[[], object], lost: str) -> None:
        self._surface()
        if self.thread is None:
            self.thread = threading.Thread(target=self._work, name="graphkit-saves", daemon=True)
            self.thread.start()
        self.queue.put((put, lost))

    def flush(self) -> None:
        self.queue.join()
        self._surface()

    def close(self) -> None:
        thread, self.thread = self.thread, None
        if thread is not None:
            self.queue.put(None)
            thread.join()
        if self.error is not None and not self.was_raised:
            _LOG.error("not everything of the last run was stored: %s", self.error)

    def _surface(self) -> None:
        if self.error is not None:
            self.was_raised = True
            raise self.error

    def _work(self) -> None:
        while (item := self.queue.get()) is not None:
            try:
                if self.error is None:
                    self._do(*item)
            except BaseException as error:  # noqa: BLE001 - raised again where the run will hear of it
                self.error = error
            finally:
                self.queue.task_done()
        self.queue.task_done()

    def _do(self, put: Callable[[], object], lost: str) -> None:
        try:
            put()
        except (CheckpointerError, OSError) as error:
            self.failed(error, lost)


def what(request: Save | Record) -> str:
    """What it is that was to be stored."""
    return f"the checkpoint of {request.node_id!r}" if isinstance(request, Save) else "what belongs to a checkpoint"


def checkpoint_of(save: Save) -> Checkpoint:
    """The checkpoint that is asked for."""
    return Checkpoint._create(  # noqa: SLF001 - the engine's own way to make a checkpoint
        node_id=save.node_id,
        next_node_id=save.next_node_id,
        parent_id=save.parent_id,
        metadata=save.metadata,
        state=save.data,
        changes=save.changes,
    )
