"""NameAllocator: names for the shapes of a diagram."""

from __future__ import annotations

import re
from typing import Final, final

_SAFE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED: Final = re.compile(
    r"call|class|click|default|direction|end|flowchart|graph|href|interpolate|linkstyle|style|subgraph|"
    r"_blank|_parent|_self|_top",
    re.IGNORECASE,
)
"""A name cannot begin with these: Mermaid would read it as a keyword."""


@final
class NameAllocator:
    """Allocates names that are unique and that Mermaid and PlantUML accept."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def allocate(self, wanted: str) -> str:
        """Return the name itself if it is safe and free; otherwise a similar or a numbered one."""
        base = wanted
        if not _SAFE.fullmatch(wanted) or _RESERVED.match(wanted):
            base = f"n{len(self._taken)}"

        name = base
        while name in self._taken:
            name = f"{base}_{len(self._taken)}"

        self._taken.add(name)
        return name
