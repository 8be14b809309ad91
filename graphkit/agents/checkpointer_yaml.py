"""CheckpointerYAMLHandler: the checkpointer block of an agent file. Ports the class of Petal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from graphkit.agents.checkpointer_config import CheckpointerConfig


@final
class CheckpointerYAMLHandler:
    """Reads the block `checkpointer` of a YAML file that has been loaded."""

    def parse_checkpointer_config(self, block: Mapping[str, Any]) -> CheckpointerConfig:
        """Return the configuration that a block describes.

        Args:
            block: the mapping with the keys `type`, `config` and `enabled`, each optional.

        Raises:
            CheckpointerConfigurationError: it is no mapping, the type is unknown, or a key is
                unknown or wrong.
        """
        return CheckpointerConfig.from_dict(block)

    def validate_checkpointer_config(self, block: object) -> bool:
        """Return whether `parse_checkpointer_config` accepts a value. Never raises an Exception."""
        try:
            CheckpointerConfig.from_dict(block)  # type: ignore[arg-type]
        except Exception:  # noqa: BLE001 - the promise: objects of any class may raise anything
            return False
        return True
