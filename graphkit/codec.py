"""The codec of graphkit's own savers: it packs every value that a state may hold, and restores it exactly.

`graphkit.saver_kit` has it, too, with what else a writer of savers uses.
"""

from graphkit.saver_kit import Codec

__all__ = ["Codec"]
