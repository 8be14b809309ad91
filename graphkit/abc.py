"""The public door for people who implement something: a saver, a serializer, an action, a channel."""

from graphkit._public_names import set_public_module
from graphkit._saver.base import (
    BaseCheckpointSaver as BaseCheckpointSaver,
    HasVersions as HasVersions,
    InterruptableAction as InterruptableAction,
    InterruptibleAction as InterruptibleAction,
    StateSerializer as StateSerializer,
    copy_thread as copy_thread,
)
from graphkit._saver.watch import Change as Change, Watch as Watch
from graphkit._saver.writes import check_tags as check_tags, check_writes as check_writes
from graphkit._values.channels import Channel as Channel, Reducer as Reducer, RemoveIdentifier as RemoveIdentifier

__all__ = [
    "BaseCheckpointSaver",
    "Change",
    "Channel",
    "HasVersions",
    "InterruptableAction",
    "InterruptibleAction",
    "Reducer",
    "RemoveIdentifier",
    "StateSerializer",
    "Watch",
    "check_tags",
    "check_writes",
    "copy_thread",
]

set_public_module(globals(), __name__)
