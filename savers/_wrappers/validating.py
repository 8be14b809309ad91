"""ValidatingSaver: refuses checkpoints without a node or a state."""

from __future__ import annotations

from graphkit import Checkpoint, RunnableConfig
from graphkit.errors import CheckpointerConfigurationError
from graphkit.saver_kit import ConfigLike, has_status_mark
from savers._wrappers.base import SaverWrapper


class ValidatingSaver(SaverWrapper):
    """Refuses checkpoints that have no node or an empty state; a run that was submitted has no state yet."""

    def put(self, config: ConfigLike, checkpoint: Checkpoint) -> RunnableConfig:
        """Store a checkpoint if it has a node and a state.

        Raises:
            CheckpointerConfigurationError: the node id or the state is empty. Nothing was changed.
                Errors of the delegate are raised too.
        """
        if not checkpoint.node_id:
            raise CheckpointerConfigurationError("the checkpoint was not stored: its node_id is empty")
        if not checkpoint.state and not has_status_mark(checkpoint.metadata):
            raise CheckpointerConfigurationError("the checkpoint was not stored: its state is empty")
        return super().put(config, checkpoint)
