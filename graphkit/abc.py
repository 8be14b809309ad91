"""The contracts, for people who implement one: a saver, a serializer, an action or a channel.

`graphkit.saver_kit` has what savers use besides. `graphkit.codec` has the codec for savers that store
bytes, and `graphkit.values` the read-only values of a state. docs/writing-a-saver.md is the guide.
"""

from typing import TYPE_CHECKING, Any

from graphkit._public_names import set_public_module
from graphkit._records.config import ConfigLike, ThreadLike
from graphkit._records.output import InterruptableAction
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import (
    HasVersions,
    Progress,
    SupportsCheckAccess,
    SupportsCompact,
    SupportsDeleteIdle,
    SupportsErase,
    SupportsExists,
    SupportsFlush,
    SupportsOwnKeys,
    SupportsRemove,
    SupportsRepair,
    SupportsReplay,
    SupportsRotate,
    SupportsVerify,
)
from graphkit._saver.retention import RetentionOptions
from graphkit._saver.watch import Change, ChangeKind, Watch
from graphkit._values.channels import Channel, Reducer, RemoveIdentifier
from graphkit._values.state import StateSerializer

if TYPE_CHECKING:
    from graphkit._saver.reports import (
        FileRepair,
        FileReport,
        FileState,
        LostCheckpoint,
        RepairReport,
        RotationReport,
        ThreadReport,
        Unfinished,
        VerifyReport,
    )

__all__ = [
    "BaseCheckpointSaver",
    "Change",
    "ChangeKind",
    "Channel",
    "ConfigLike",
    "FileRepair",
    "FileReport",
    "FileState",
    "HasVersions",
    "InterruptableAction",
    "LostCheckpoint",
    "Progress",
    "Reducer",
    "RemoveIdentifier",
    "RepairReport",
    "RetentionOptions",
    "RotationReport",
    "StateSerializer",
    "SupportsCheckAccess",
    "SupportsCompact",
    "SupportsDeleteIdle",
    "SupportsErase",
    "SupportsExists",
    "SupportsFlush",
    "SupportsOwnKeys",
    "SupportsRemove",
    "SupportsRepair",
    "SupportsReplay",
    "SupportsRotate",
    "SupportsVerify",
    "ThreadLike",
    "ThreadReport",
    "Unfinished",
    "VerifyReport",
    "Watch",
]

set_public_module(globals(), __name__)


def __getattr__(name: str) -> Any:
    """Import the reports when one of them is first used: making these dataclasses takes 3 ms."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from graphkit._saver import reports

    set_public_module({**vars(reports), "__all__": __all__}, __name__)
    globals().update({each: vars(reports)[each] for each in __all__ if each in vars(reports)})
    return globals()[name]


def __dir__() -> list[str]:
    return [*__all__]
