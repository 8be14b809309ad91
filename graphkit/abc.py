"""The contracts, for people who implement one: a saver, a serializer, an action or a channel.

`graphkit.saver_kit` has what savers use besides: the codec, the read-only values of a state, what follows
from pending writes, and more. docs/writing-a-saver.md is the guide.
"""

from typing import TYPE_CHECKING, Final

from graphkit._public_names import import_when_used, set_public_module
from graphkit._records.output import InterruptableAction
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import (
    HasVersions,
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
from graphkit._saver.watch import Watch
from graphkit._values.channels import Channel, Reducer, RemoveIdentifier
from graphkit._values.state import StateSerializer

if TYPE_CHECKING:
    from graphkit._plan.events import Observer
    from graphkit._saver.reports import RepairReport, RotationReport, VerifyReport

__all__ = [
    "BaseCheckpointSaver",
    "Channel",
    "HasVersions",
    "InterruptableAction",
    "Observer",
    "Reducer",
    "RemoveIdentifier",
    "RepairReport",
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
    "VerifyReport",
    "Watch",
]

_REPORTS: Final = ("RepairReport", "RotationReport", "VerifyReport")
"""Imported when they are first used: making these dataclasses takes 3 ms."""

__getattr__, __dir__ = import_when_used(
    globals(), dict.fromkeys(_REPORTS, "graphkit._saver.reports"), {"Observer": "graphkit._plan.events"}
)

set_public_module(globals(), __name__)
