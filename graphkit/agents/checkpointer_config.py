"""CheckpointerConfig and CheckpointerYAMLHandler: which saver keeps the checkpoints. Ports the classes of Petal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Self, final

from pydantic import Field, SecretStr, field_validator

from graphkit._saver.base import BaseCheckpointSaver
from graphkit.agents.settings import Path, Settings, dump_value
from graphkit.errors import CheckpointerConfigurationError
from graphkit.registry import check_saver_options, get_saver, saver_names

_SECRET_OPTIONS: Final = frozenset({"connection_string"})
_EXAMPLES: Final = ["memory", "versioned_memory", "file", "sqlite", "postgres"]


class CheckpointerConfig(Settings):
    """Which saver an agent uses. Immutable.

    Making one checks its shape: the type exists, and there is no unknown key. `build` imports the
    backend of the type, and no other, and checks the arguments in `config`.

        CheckpointerConfig("sqlite", {"db_file": "runs.db"}).build()
    """

    error_class = CheckpointerConfigurationError

    type: str = Field("memory", json_schema_extra={"examples": list(_EXAMPLES)})
    """The kind of saver: `memory`, `versioned_memory`, `file` (also `disk`, `filesystem`), `sqlite`, `postgres`, or
    a kind that is registered or installed."""
    config: dict[str, Any] | None = Field(None, repr=False)
    """The arguments of the saver: `base_directory` of `file`, `db_file` of `sqlite`, `connection_string` of
    `postgres`, and the options of each. Relative paths start at the working directory."""
    enabled: bool = True
    """Whether there are checkpoints. `false`: the agent runs without a saver."""

    def __init__(
        self,
        /,
        type: str = "memory",
        config: Mapping[str, Any] | None = None,
        enabled: bool = True,
        **unknown: Any,
    ) -> None:
        """Check a configuration.

        Args:
            type: the kind of saver.
            config: the arguments of the saver.
            enabled: False: `build` returns None.
            unknown: refused.

        Raises:
            CheckpointerConfigurationError: the type is unknown, or a value has the wrong type. The
                message names the key.
        """
        if isinstance(config, Mapping):
            config = dict(config)
        super().__init__(type=type, config=config, enabled=enabled, **unknown)

    @field_validator("type")
    @classmethod
    def _check_type(cls, name: str) -> str:
        known = saver_names()
        if name not in known:
            raise ValueError(f"Unsupported checkpointer type: {name!r}; known are {', '.join(known)}")
        return name

    @field_validator("config")
    @classmethod
    def _hide_secrets(cls, config: dict[str, Any] | None) -> dict[str, Any] | None:
        if config is None:
            return None
        hidden = dict(config)
        for name in _SECRET_OPTIONS & config.keys():
            if isinstance(config[name], str):
                hidden[name] = SecretStr(config[name])
        return hidden

    def build(self) -> BaseCheckpointSaver | None:
        """Make the saver; return None if checkpoints are not enabled.

        Raises:
            CheckpointerConfigurationError: a key of `config` is missing, unknown or wrong. The
                message names it. Nothing was stored.
            MissingDependencyError: the saver needs a package that is not installed.
        """
        if not self.enabled:
            return None
        options = self._find_options()
        with self._explain_errors():
            return get_saver(self.type, **options)

    def check(self) -> None:
        """Check `config` without making the saver: nothing is opened or created.

        The values for a kind that another package or the application registered are checked if the kind
        has a method `check_options`, and else by `build`.

        Raises:
            CheckpointerConfigurationError: a key is missing, unknown or wrong. The message names it.
            MissingDependencyError: the saver needs a package that is not installed.
        """
        if not self.enabled:
            return
        options = self._find_options()
        with self._explain_errors():
            check_saver_options(self.type, **options)

    def find_wrong_option(self, error: CheckpointerConfigurationError) -> str | None:
        """Return the key of `config` that `check` refused with an error; None if a key is missing.

        An error of a saver, which any package may define, does not say which option it is about. Without the
        wrong option there is no error or another one; without any other option it stays the same.
        """
        for name in self.config or {}:
            others = {other: value for other, value in (self.config or {}).items() if other != name}
            try:
                self.model_copy(update={"config": others}).check()
            except CheckpointerConfigurationError as other_error:
                if str(other_error) == str(error):
                    continue
            return name
        return None

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        """Raise what a saver raises for wrong arguments as an error of the configuration."""
        try:
            yield
        except CheckpointerConfigurationError:
            raise
        except (TypeError, ValueError) as error:
            raise CheckpointerConfigurationError(f"config of the checkpointer type {self.type!r}: {error}") from error

    def _find_options(self) -> dict[str, Any]:
        options = {name: _reveal(value) for name, value in (self.config or {}).items()}
        if "name" in options:
            raise CheckpointerConfigurationError(f"config.name is unknown to the checkpointer type {self.type!r}")
        return options

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a plain dict, which `from_dict` reads."""
        return {
            "type": self.type,
            "config": None if self.config is None else {name: _reveal(value) for name, value in self.config.items()},
            "enabled": self.enabled,
        }

    def dump(self, path: Path = ()) -> dict[str, Any]:
        """As `to_dict`, with names for objects."""
        plain = self.to_dict()
        plain["config"] = dump_value(plain["config"], (*path, "config"))
        return plain

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> Self:
        """Read what `to_dict` returned, or the block `checkpointer` of a file.

        Raises:
            CheckpointerConfigurationError: it is no mapping, or a key is unknown or wrong.
        """
        return cls.from_mapping(mapping)


@final
class CheckpointerYAMLHandler:
    """Reads the block `checkpointer` of a YAML file that has been loaded."""

    def parse_checkpointer_config(self, block: Mapping[str, Any]) -> CheckpointerConfig:
        """Return the configuration that a block describes.

        Args:
            block: the mapping with the keys `type`, `config` and `enabled`, each optional.

        Raises:
            CheckpointerConfigurationError: it is no mapping, the type is unknown, or a key is
                unknown or wrong.
        """
        return CheckpointerConfig.from_dict(block)

    def validate_checkpointer_config(self, block: object) -> bool:
        """Return whether `parse_checkpointer_config` accepts a value. Never raises an Exception."""
        try:
            CheckpointerConfig.from_dict(block)  # type: ignore[arg-type]
        except Exception:  # noqa: BLE001 - the promise: objects of any class may raise anything
            return False
        return True


def _reveal(value: Any) -> Any:
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def parse_checkpointer(checkpointer: Any) -> Any:
    """Return a checkpointer as an agent takes it: a saver, None, or an object whose `build()` returns one of these.

    Args:
        checkpointer: one of these, such as a CheckpointerConfig; or a mapping of the fields of that class.

    Raises:
        CheckpointerConfigurationError: it is none of these, or a field is unknown or wrong.
    """
    if isinstance(checkpointer, Mapping):
        return CheckpointerConfig.from_dict(checkpointer)
    is_saver = checkpointer is None or isinstance(checkpointer, BaseCheckpointSaver)
    if is_saver or hasattr(checkpointer, "build"):
        return checkpointer
    raise CheckpointerConfigurationError(
        f"a checkpointer must be a mapping, a CheckpointerConfig or a saver, not {checkpointer!r}"
    )
