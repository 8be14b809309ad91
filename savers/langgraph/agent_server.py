"""Opens the checkpointer of LangGraph's Agent Server in the directory that the environment names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from graphkit.errors import CheckpointerConfigurationError, CheckpointerError
from graphkit.registry import saver_names
from savers.langgraph.file_saver import FileSystemCheckpointSaver

VARIABLE: Final = "GRAPHKIT_DIR"
"""The environment variable that names the directory, as for the command line."""


def open_from_environment(environment: Mapping[str, str]) -> FileSystemCheckpointSaver:
    """Open the directory that GRAPHKIT_DIR names; create it if it is missing.

    Raises:
        CheckpointerConfigurationError: the variable is missing or empty, or what it names cannot be
            used. The error names the variable.
    """
    directory = environment.get(VARIABLE, "")
    if not directory:
        raise CheckpointerConfigurationError(
            f"{VARIABLE} is not set: name the directory of the checkpoints, for example in langgraph.json: "
            f'"env": {{"{VARIABLE}": "./checkpoints"}}'
        )
    kind, colon, _ = directory.partition(":")
    if colon and kind in saver_names() and not Path(directory).exists():
        raise CheckpointerConfigurationError(
            f"{VARIABLE}={directory!r} names another kind of store; LangGraph's checkpointer needs a directory"
        )
    try:
        return FileSystemCheckpointSaver(directory)
    except CheckpointerError as error:
        raise CheckpointerConfigurationError(f"{VARIABLE}={directory!r} cannot be used: {error}") from error
