"""The contracts, for people who implement one: a saver, a serializer, an action or a channel.

`graphkit.saver_kit` has what savers use besides. `graphkit.codec` has the codec for savers that store
bytes, and `graphkit.values` the read-only values of a state. docs/writing-a-saver.md is the guide.
"""

from graphkit._public_names import (
    set_public_module as set_public_module,
)
from graphkit._records.config import (
    ConfigLike as ConfigLike,
)
from graphkit._records.interruptable import (
    InterruptableAction as InterruptableAction,
    InterruptibleAction as InterruptibleAction,
)
from graphkit._saver.arguments import (
    ThreadLike as ThreadLike,
)
from graphkit._saver.base import (
    BaseCheckpointSaver as BaseCheckpointSaver,
)
from graphkit._saver.capabilities import (
    HasBaseDirectory as HasBaseDirectory,
    LostCheckpoint as LostCheckpoint,
    Progress as Progress,
    RepairReport as RepairReport,
    RotationReport as RotationReport,
    SupportsClose as SupportsClose,
    SupportsCompact as SupportsCompact,
    SupportsDeleteIdle as SupportsDeleteIdle,
    SupportsExists as SupportsExists,
    SupportsFlush as SupportsFlush,
    SupportsRemove as SupportsRemove,
    SupportsRepair as SupportsRepair,
    SupportsReplay as SupportsReplay,
    SupportsRotate as SupportsRotate,
    SupportsVerify as SupportsVerify,
    VerifyReport as VerifyReport,
)
from graphkit._saver.retention import (
    RetentionOptions as RetentionOptions,
)
from graphkit._saver.serializer import (
    StateSerializer as StateSerializer,
)
from graphkit._saver.versions import (
    HasVersions as HasVersions,
)
from graphkit._saver.watch import (
    Change as Change,
    ChangeKind as ChangeKind,
    Watch as Watch,
)
from graphkit._values.channels import (
    Channel as Channel,
    Reducer as Reducer,
    RemoveIdentifier as RemoveIdentifier,
)

__all__ = [
    "BaseCheckpointSaver",
    "Change",
    "ChangeKind",
    "Channel",
    "ConfigLike",
    "HasBaseDirectory",
    "HasVersions",
    "InterruptableAction",
    "InterruptibleAction",
    "LostCheckpoint",
    "Progress",
    "Reducer",
    "RemoveIdentifier",
    "RepairReport",
    "RetentionOptions",
    "RotationReport",
    "StateSerializer",
    "SupportsClose",
    "SupportsCompact",
    "SupportsDeleteIdle",
    "SupportsExists",
    "SupportsFlush",
    "SupportsRemove",
    "SupportsRepair",
    "SupportsReplay",
    "SupportsRotate",
    "SupportsVerify",
    "ThreadLike",
    "VerifyReport",
    "Watch",
]

set_public_module(globals(), __name__)
