"""A pydantic model as a schema: every update is validated before it is merged. Imported only when a model is given."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from graphkit._channels import Marker
from graphkit._frozen import FrozenDict
from graphkit._schema import StateSchema, application_types, channel_from
from graphkit._state import AgentState, merge


class PydanticSchema(StateSchema):
    """The rules of a model: its fields, defaults and validators.

    An update is validated field by field, model validators included; for a field with a reducer the update is held to
    the field's type, or, if it does not fit it (one element for a list), the merged value is. Cost follows the update.
    """

    def __init__(self, model: type[BaseModel]) -> None:
        fields = model.model_fields
        channels = {name: channel_from(name, field.annotation, field.metadata) for name, field in fields.items()}
        annotations = [field.annotation for field in fields.values()]
        self.model = model
        super().__init__(
            {name: channel for name, channel in channels.items() if channel is not None},
            state_class(model),
            keys=fields,
            types=application_types(annotations),
        )
        self._adapters: dict[str, TypeAdapter[Any]] = {}

    def begin(self, data: FrozenDict, update: Mapping[str, Any]) -> tuple[FrozenDict, dict[str, int]]:
        """Merge the input of a run; a thread's first input is validated as a whole, defaults filled in."""
        if self._is_partial(data):
            fresh, _ = merge(data, self._plain(update), self.channels)
            whole = self.model.model_validate(dict(fresh), strict=None)
            update = {name: getattr(whole, name) for name in (*self.model.model_fields, *(whole.model_extra or ()))}
            return merge(data, update, {})
        return self.merge(data, update)

    def merge(self, data: FrozenDict, update: Mapping[str, Any]) -> tuple[FrozenDict, dict[str, int]]:
        """Merge a node's update.

        Raises:
            ValidationError: a field does not fit; nothing was merged.
        """
        checked: dict[str, Any] = {}
        unfit: list[str] = []
        for name, value in self._plain(update).items():
            if isinstance(value, Marker):
                checked[name] = value
            elif name not in self.channels:
                checked[name] = self._assign(data, name, value)
            else:
                try:
                    checked[name] = self._adapter(name).validate_python(value)
                except ValidationError:  # one element for a list: held to the field's type once it is merged
                    checked[name] = value
                    unfit.append(name)
        new, ops = merge(data, checked, self.channels)
        for name in unfit:
            self._assign(new, name, new.get(name))
        return new, ops

    def _adapter(self, name: str) -> TypeAdapter[Any]:
        if name not in self._adapters:
            self._adapters[name] = TypeAdapter(self.model.model_fields[name].annotation)
        return self._adapters[name]

    def _assign(self, data: FrozenDict, name: str, value: Any) -> Any:
        # Runs the field's validators and the model's, on this field only.
        holder = self.model.model_construct(**data)
        self.model.__pydantic_validator__.validate_assignment(holder, name, value)
        return getattr(holder, name)

    def _plain(self, update: Mapping[str, Any] | BaseModel) -> Mapping[str, Any]:
        if isinstance(update, BaseModel):
            return {name: getattr(update, name) for name in update.model_fields_set}
        return update

    def _is_partial(self, data: FrozenDict) -> bool:
        return any(field.is_required() and name not in data for name, field in self.model.model_fields.items()) or not data


def state_class(model: type[BaseModel]) -> type[AgentState]:
    """An AgentState that also reads like the model: fields, properties and methods as attributes."""

    class ModelState(AgentState):
        """A read-only state with the attributes of its model."""

        def __getattr__(self, name: str) -> Any:
            # What is no field: the model's own properties and methods.
            if name.startswith("_"):
                raise AttributeError(name)
            return getattr(model.model_construct(**self._data), name)

        def __reduce__(self) -> tuple[Any, ...]:
            return _rebuild, (model, dict(self._data))

    for field in model.model_fields:
        if field != "keys":  # what dict() asks a mapping for
            setattr(ModelState, field, property(itemgetter(field)))
    ModelState.__name__ = ModelState.__qualname__ = f"{model.__name__}State"
    return ModelState


def _rebuild(model: type[BaseModel], data: dict[str, Any]) -> AgentState:
    return state_class(model)(data)
