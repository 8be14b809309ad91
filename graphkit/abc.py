"""The public door for people who implement something: a saver, a serializer, an action, a channel."""

from graphkit._abc import BaseCheckpointSaver as BaseCheckpointSaver
from graphkit._abc import HasVersions as HasVersions
from graphkit._abc import InterruptableAction as InterruptableAction
from graphkit._abc import InterruptibleAction as InterruptibleAction
from graphkit._abc import StateSerializer as StateSerializer
from graphkit._abc import copy_thread as copy_thread
from graphkit._channels import Channel as Channel
from graphkit._channels import Reducer as Reducer
from graphkit._channels import RemoveIdentifier as RemoveIdentifier

__all__ = [
    "BaseCheckpointSaver",
    "Channel",
    "HasVersions",
    "InterruptableAction",
    "InterruptibleAction",
    "Reducer",
    "RemoveIdentifier",
    "StateSerializer",
    "copy_thread",
]
