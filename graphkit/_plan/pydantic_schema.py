"""PydanticSchema: validates every update against a pydantic model. Imported only when needed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from graphkit._plan.schema import StateSchema, make_state_class, read_channel, with_default
from graphkit._values.channels import REMOVE, RESET, AppenderChannel, Channel, Marker
from graphkit._values.codec.type_registry import find_application_types
from graphkit._values.frozen import FrozenDict, private_copy
from graphkit._values.state import Changes, merge
from graphkit.errors import GraphStateError


class PydanticSchema(StateSchema):
    """The rules of a pydantic model: its fields, defaults and validators.

    An update is validated field by field, so the cost depends on the update. The constraints and
    validators of a field with a reducer are about the whole value, so they check the merged value.
    A model with validators of its own is validated as a whole.
    """

    def __init__(self, model: type[BaseModel]) -> None:
        fields = model.model_fields
        channels: dict[str, Channel] = {}
        for name, field in fields.items():
            channel = read_channel(name, field.annotation, field.metadata)
            if channel is None:
                continue
            # A required field has no default; a reducer then starts from the type's empty value.
            if not field.is_required():
                channel = with_default(channel, partial(field.get_default, call_default_factory=True))
            channels[name] = channel
        types = find_application_types(field.annotation for field in fields.values())
        closed_as = "" if model.model_config.get("extra") == "allow" else model.__name__
        super().__init__(channels, make_state_class(model, fields), keys=fields, types=types, closed_as=closed_as)
        if self.transient:
            names = ", ".join(sorted(map(repr, self.transient)))
            raise GraphStateError(
                f"{names}: a field of {model.__name__} cannot be transient, because a model is validated as a whole; "
                f"use channels or a TypedDict"
            )

        self.model = model
        decorators = model.__pydantic_decorators__
        # An instance of a frozen model refuses the assignment that validates a single field.
        is_frozen = model.model_config.get("frozen")
        self._is_validated_whole = bool(decorators.model_validators or is_frozen)
        self._adapters: dict[str, TypeAdapter[Any]] = {}

        validated: set[str] = set()
        for validator in decorators.field_validators.values():
            validated.update(validator.info.fields)

        self._checked_when_merged: set[str] = set()
        """The fields with a reducer and with constraints or validators."""
        for name in channels:
            has_validators = name in validated or "*" in validated
            has_constraints = any(
                not callable(extra) and not isinstance(extra, Channel) for extra in fields[name].metadata
            )
            if has_validators or has_constraints:
                self._checked_when_merged.add(name)

    def merge_input(self, data: FrozenDict, update: Mapping[str, Any]) -> tuple[FrozenDict, dict[str, int]]:
        """Merge the input of a run.

        If the state lacks fields, fill in the defaults and validate the state as a whole.
        """
        if all(name in data for name in self.model.model_fields):
            return self.merge(data, update)
        self.refuse_unknown_keys(update, data)
        return self._merge_whole(data, update)

    def merge(self, data: FrozenDict, update: Mapping[str, Any]) -> tuple[FrozenDict, dict[str, int]]:
        """Merge a node's update.

        A field without a reducer gets the value itself. What a node returns for a field with a reducer
        is an operand, which need not be of the field's type. So for

            class Order(BaseModel):
                price: int
                items: Annotated[list[str], operator.add]
                letters: Annotated[int, Le(9), lambda old, new: old + len(new)]

        the update {"price": "3", "items": ["x"], "letters": "abc"} goes three ways:

        - `price` is validated as the field, and becomes 3.
        - `items` is an operand that fits the type. The list that it is added to was validated before,
          so the merged list is not validated again: that would cost O(list) at every step.
        - `letters` is an operand that does not fit, and its field has a constraint, which is about the
          sum. The operand is merged as it is, and the sum is validated.

        Raises:
            ValueError: a value does not fit its field (pydantic's ValidationError is a ValueError),
                or the model has no such field; nothing is merged.
        """
        self.refuse_unknown_keys(update, data)
        values = {name: self._resolve_marker(name, value) for name, value in update.items()}

        if self._is_validated_whole:
            return self._merge_whole(data, values)

        validated: dict[str, Any] = {}
        unchecked: list[str] = []
        for name, value in values.items():
            if isinstance(value, Marker) or self._is_inlined(name):
                validated[name] = value
            elif name not in self.channels:
                validated[name] = self._validate_assignment(data, name, value)
            else:
                fits, validated[name] = self._validate_operand(name, value)
                if not fits or name in self._checked_when_merged:
                    unchecked.append(name)

        merged, ops = merge(data, validated, self.channels)
        checked: dict[str, Any] = {}
        for name in unchecked:
            value = merged.get(name)
            checked[name] = self._validate_assignment(merged, name, value)

        result, later_ops = merge(merged, checked, {})
        return result, Changes(data, ops).compose(later_ops).ops

    def adopt(self, data: Mapping[str, Any]) -> FrozenDict:
        """Return the state of another graph as a first state of this one, validated as a whole."""
        fields = self.model.model_fields
        values = {name: value for name, value in data.items() if name in fields or self._is_inlined(name)}
        state, _ = self._merge_whole(FrozenDict(), values)
        return state

    def normalize_update(self, update: Mapping[str, Any], data: FrozenDict) -> Mapping[str, Any]:
        """Return the update after validation: "3" for an int is 3."""
        normalized: dict[str, Any] = {}
        for name, value in update.items():
            if isinstance(value, Marker):
                normalized[name] = value
            elif name in self.channels:
                # The merged value is not what the node returned, so the operand is used.
                _, normalized[name] = self._validate_operand(name, value)
            else:
                normalized[name] = data.get(name, REMOVE)
        return normalized

    def parse_update(self, value: object) -> Mapping[str, Any] | None:
        """Return an update as a mapping; an object of a model sets the fields that it was given and has."""
        if isinstance(value, BaseModel):
            return {name: getattr(value, name) for name in value.model_fields_set if hasattr(value, name)}
        return super().parse_update(value)

    def _merge_whole(
        self,
        data: FrozenDict,
        values: Mapping[str, Any],
    ) -> tuple[FrozenDict, dict[str, int]]:
        """Merge values, then validate the whole state.

        The second merge puts in what the validation has changed: a converted value, a default, or what
        a validator of the model has set in another field. For

            class Range(BaseModel):
                low: int
                high: int = 10

                @model_validator(mode="after")
                def order(self): self.low = min(self.low, self.high); return self

        and {"low": "12"}, the first merge gives low="12", and the corrections are low=10, high=10.
        The other fields keep their values: a saver stores each key that a merge sets.
        """
        merged, ops = merge(data, values, self.channels)
        # Validators may change mutable application objects, so they receive copies of them.
        given = {name: value for name, value in private_copy(merged).items() if not self._is_inlined(name)}
        instance = self.model.model_validate(given)
        extra = instance.model_extra or {}
        names = dict.fromkeys((*self.model.model_fields, *extra))

        corrections: dict[str, Any] = {}
        for name in names:
            value = getattr(instance, name)
            # A value that was not given was validated before: if it is equal, so is its type.
            if name in values or name not in merged or not merged[name] == value:  # noqa: SIM201 - its own ==
                corrections[name] = value
        for name in merged:
            if name not in names and not self._is_inlined(name):
                corrections[name] = REMOVE  # a model that ignores extra keys drops it

        result, later_ops = merge(merged, corrections, {})
        return result, Changes(data, ops).compose(later_ops).ops

    def _is_inlined(self, name: str) -> bool:
        """Return whether a key is only of the schema of an inlined graph: the model does not validate it.

        An open schema among them has all the keys that the model has not.
        """
        is_opened = not self.closed_as and self.model.model_config.get("extra") != "allow"
        return name not in self.model.model_fields and (name in self.known_keys or is_opened)

    def _resolve_marker(self, name: str, value: Any) -> Any:
        """Return the value that RESET, or None for a field with a reducer, stands for.

        Other values are returned unchanged, as are markers that the merge resolves.

        Raises:
            ValueError: a required field would have no value.
        """
        field = self.model.model_fields.get(name)
        if field is None:
            return value
        channel = self.channels.get(name)
        resets_channel = value is None and channel is not None

        if not isinstance(value, Marker) and not resets_channel:
            return value

        # Only a reducer has a default that RESET and None restore; REMOVE removes the key.
        has_default = value is not REMOVE and channel is not None and channel.default is not None
        if field.is_required() and not has_default:
            raise ValueError(f"{name!r} is a required field of {self.model.__name__}; it needs a value")

        if value is RESET and channel is None:
            return field.get_default(call_default_factory=True)
        if value is None:
            return RESET
        return value

    def _validate_operand(self, name: str, value: Any) -> tuple[bool, Any]:
        """Validate the value that a reducer receives as the new one.

        It has the type of the field, or it is one element of a list.

        Returns:
            Whether the value fits the type; and the validated value, or the value itself.
        """
        if name not in self._adapters:
            annotation: Any = self.model.model_fields[name].annotation
            self._adapters[name] = TypeAdapter(annotation)
        adapter = self._adapters[name]

        candidates = [value]
        if isinstance(self.channels[name], AppenderChannel):
            candidates.append([value])
        for candidate in candidates:
            try:
                return True, adapter.validate_python(candidate)
            except ValidationError:
                continue
        return False, value

    def _validate_assignment(self, data: FrozenDict, name: str, value: Any) -> Any:
        """Return a value as the field stores it. Runs the validators of this field only."""
        # pydantic validates a single field only where it is assigned to an instance. This one is made
        # without validation, because its values were validated when they entered the state, and is
        # dropped. A validator of the field sees the other fields in it, as `info.data`.
        instance = self.model.model_construct(**data)
        self.model.__pydantic_validator__.validate_assignment(instance, name, value)
        return getattr(instance, name)
