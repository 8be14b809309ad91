"""A pydantic model as a schema: every update is validated before it is merged. Imported only when a model is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import itemgetter
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from graphkit._plan.schema import StateSchema, TypedChannel, find_application_types, read_channel
from graphkit._values.channels import REMOVE, RESET, AppenderChannel, Channel, Marker
from graphkit._values.frozen import FrozenDict, private_copy
from graphkit._values.state import SET, AgentState, merge
from graphkit.errors import GraphStateError


class PydanticSchema(StateSchema):
    """The rules of a model: its fields, defaults and validators.

    An update is validated field by field, at the cost of the update. Where it has a reducer, the field's rules of its
    own (constraints, validators) are held against the merged value, for they are about all of it. A model with
    validators of its own is validated as a whole.
    """

    def __init__(self, model: type[BaseModel]) -> None:
        fields = model.model_fields
        found = {name: read_channel(name, field.annotation, field.metadata) for name, field in fields.items()}
        channels = {name: channel for name, channel in found.items() if channel is not None}
        for name, channel in channels.items():
            if isinstance(channel, TypedChannel) and not fields[name].is_required():
                channel.default = partial(fields[name].get_default, call_default_factory=True)
        annotations = [field.annotation for field in fields.values()]
        super().__init__(channels, state_class(model), keys=fields, types=find_application_types(annotations))
        if self.transient:
            raise GraphStateError(
                f"{', '.join(sorted(map(repr, self.transient)))}: a field of {model.__name__} cannot be transient, "
                f"for a model is validated whole; use channels or a TypedDict"
            )
        self.model = model
        decorators = model.__pydantic_decorators__
        self._is_one_piece = bool(decorators.model_validators or model.model_config.get("frozen"))
        validated = {name for one in decorators.field_validators.values() for name in one.info.fields}
        self._ruled = {name for name in channels if validated & {name, "*"} or _has_rules(fields[name].metadata)}
        """The fields with a reducer and rules of their own."""
        self._adapters: dict[str, TypeAdapter[Any]] = {}

    def merge_input(self, data: FrozenDict, update: Mapping[str, Any]) -> tuple[FrozenDict, dict[str, int]]:
        """Merge the input of a run; where fields are missing it is validated as a whole, defaults filled in."""
        if all(name in data for name in self.model.model_fields):
            return self.merge(data, update)
        return self._whole(data, self.to_mapping(update))

    def merge(self, data: FrozenDict, update: Mapping[str, Any]) -> tuple[FrozenDict, dict[str, int]]:
        """Merge a node's update.

        Raises:
            ValueError: a field does not fit (pydantic's ValidationError is one); nothing was merged.
        """
        plain = {name: self._unmarked(name, value) for name, value in self.to_mapping(update).items()}
        if self._is_one_piece:
            for name in plain:
                if name not in self.model.model_fields and self.model.model_config.get("extra") != "allow":
                    raise ValueError(f"{name!r} is not a field of {self.model.__name__}")
            return self._whole(data, plain)
        checked: dict[str, Any] = {}
        late: list[str] = []
        for name, value in plain.items():
            if isinstance(value, Marker):
                checked[name] = value
            elif name not in self.channels:
                checked[name] = self._assigned(data, name, value)
            else:
                fits, checked[name] = self._piece(name, value)
                if not fits or name in self._ruled:
                    late.append(name)
        new, ops = merge(data, checked, self.channels)
        whole = {name: self._assigned(new, name, new.get(name)) for name in late}
        return _after(ops, *merge(new, whole, {}))

    def adopt(self, data: Mapping[str, Any]) -> FrozenDict:
        """The state of another graph as this one's first, validated as a whole."""
        return self._whole(FrozenDict(), {name: data[name] for name in data if name in self.model.model_fields})[0]

    def normalize_update(self, update: Mapping[str, Any], data: FrozenDict) -> Mapping[str, Any]:
        """The update after validation: "3" for an int is 3."""
        return {name: self._taken(name, value, data) for name, value in self.to_mapping(update).items()}

    def _taken(self, name: str, value: Any, data: FrozenDict) -> Any:
        if isinstance(value, Marker):
            return value
        return self._piece(name, value)[1] if name in self.channels else data.get(name, REMOVE)

    def _whole(self, data: FrozenDict, plain: Mapping[str, Any]) -> tuple[FrozenDict, dict[str, int]]:
        new, ops = merge(data, plain, self.channels)
        whole = self.model.model_validate(dict(private_copy(new)))
        found = {name: getattr(whole, name) for name in (*self.model.model_fields, *(whole.model_extra or ()))}
        changed = {name: value for name, value in found.items() if name in plain or not _is_same(new, name, value)}
        gone = {name: REMOVE for name in new if name not in found}  # what a model that ignores extras drops
        return _after(ops, *merge(new, {**changed, **gone}, {}))

    def _unmarked(self, name: str, value: Any) -> Any:
        """What RESET means for a field with a default; refuses what would leave a required field without a value."""
        field = self.model.model_fields.get(name)
        if field is None or not (isinstance(value, Marker) or (value is None and name in self.channels)):
            return value
        channel = self.channels.get(name)
        has_default = value is not REMOVE and channel is not None and channel.default is not None
        if field.is_required() and not has_default:
            raise ValueError(f"{name!r} is a required field of {self.model.__name__}; it needs a value")
        if channel is None and value is RESET:
            return field.get_default(call_default_factory=True)
        return RESET if value is None else value

    def _piece(self, name: str, value: Any) -> tuple[bool, Any]:
        """An update of a field with a reducer, held to the field's type: itself, or as one element of a list."""
        if name not in self._adapters:
            annotation: Any = self.model.model_fields[name].annotation
            self._adapters[name] = TypeAdapter(annotation)
        for candidate in (value, [value]) if isinstance(self.channels[name], AppenderChannel) else (value,):
            try:
                return True, self._adapters[name].validate_python(candidate)
            except ValidationError:
                continue
        return False, value

    def _assigned(self, data: FrozenDict, name: str, value: Any) -> Any:
        """A value as the field takes it: its validators run, those of other fields do not."""
        holder = self.model.model_construct(**data)
        self.model.__pydantic_validator__.validate_assignment(holder, name, value)
        return getattr(holder, name)

    def to_mapping(self, update: Mapping[str, Any] | BaseModel) -> Mapping[str, Any]:
        if isinstance(update, BaseModel):
            return {name: getattr(update, name) for name in update.model_fields_set}
        return update


def _has_rules(metadata: list[Any]) -> bool:
    return any(not callable(extra) and not isinstance(extra, Channel) for extra in metadata)


def _is_same(data: FrozenDict, name: str, value: Any) -> bool:
    # Validated before, so a value that is equal is of the same types, too.
    return name in data and bool(data[name] == value)


def _after(first: dict[str, int], data: FrozenDict, second: dict[str, int]) -> tuple[FrozenDict, dict[str, int]]:
    return data, {**first, **{key: SET if op >= 0 else op for key, op in second.items()}}


def state_class(model: type[BaseModel]) -> type[AgentState]:
    """An AgentState that also reads like the model: fields, properties and methods as attributes."""

    class ModelState(AgentState):
        """A read-only state with the attributes of its model."""

        def __getattr__(self, name: str) -> Any:
            # What is no field: the model's own properties and methods.
            if name.startswith("_"):
                raise AttributeError(name)
            return getattr(model.model_construct(**dict(self)), name)

        def __reduce__(self) -> tuple[Any, ...]:
            return _rebuild, (model, dict(self._data))

    for field in model.model_fields:
        if field != "keys":  # what dict() asks a mapping for
            setattr(ModelState, field, property(itemgetter(field), _refuser(field)))
    ModelState.__name__ = ModelState.__qualname__ = f"{model.__name__}State"
    return ModelState


def _refuser(field: str) -> Callable[[AgentState, Any], None]:
    return lambda state, value: AgentState.__setitem__(state, field, value)


def _rebuild(model: type[BaseModel], data: dict[str, Any]) -> AgentState:
    return state_class(model)(data)
