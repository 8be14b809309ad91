"""JavaNames: keeps `addNode = add_node` true in subclasses."""

from __future__ import annotations

from typing import Any


def snake_to_camel(name: str) -> str:
    """`add_conditional_edges` -> `addConditionalEdges`."""
    first, *rest = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


class JavaNames:
    """Makes the two spellings of a method one method, also after a subclass overrides either of them.

    A class that mixes this in writes its aliases as plain lines (`getStateHistory = get_state_history`), which is what
    editors and type checkers read. When a subclass overrides one spelling, the other is rebound to the same body.
    """

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in cls.__mro__[1:]:
            for snake in [name for name in vars(base) if "_" in name.strip("_") and not name.startswith("_")]:
                camel = snake_to_camel(snake)
                if camel in vars(base):
                    _bind_together(cls, snake, camel)


def _bind_together(cls: type, snake: str, camel: str) -> None:
    own = vars(cls)
    if snake in own and camel not in own:
        setattr(cls, camel, own[snake])
    elif camel in own and snake not in own:
        setattr(cls, snake, own[camel])
