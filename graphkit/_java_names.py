"""JavaNames: keeps `addNode` and `add_node` one method in subclasses."""

from __future__ import annotations

from typing import Any


def snake_to_camel(name: str) -> str:
    """Convert `add_conditional_edges` to `addConditionalEdges`."""
    first, *rest = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


class JavaNames:
    """Makes the two spellings of a method one method, even if a subclass overrides one of them.

    A class that mixes this in writes each alias as a plain line, such as
    `getStateHistory = get_state_history`, because editors and type checkers read them. When a
    subclass overrides one spelling, the other is bound to the same function.
    """

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in cls.__mro__[1:]:
            for name in list(vars(base)):
                if _is_public_snake_case(name) and snake_to_camel(name) in vars(base):
                    _bind_together(cls, name, snake_to_camel(name))


def _is_public_snake_case(name: str) -> bool:
    return not name.startswith("_") and "_" in name.strip("_")


def _bind_together(cls: type, snake: str, camel: str) -> None:
    own = vars(cls)
    if snake in own and camel not in own:
        setattr(cls, camel, own[snake])
    elif camel in own and snake not in own:
        setattr(cls, snake, own[camel])
