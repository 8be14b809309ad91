"""Settings: base of the models of a configuration; their secrets, their problems, and their form as plain data."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final, NamedTuple, Self
from urllib.parse import SplitResult, quote, urlsplit, urlunsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    ModelWrapValidatorHandler,
    SecretStr,
    Tag,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from graphkit._plan.retry import RetryPolicy
from graphkit._wording import describe_error, simplify_message
from graphkit.agents.tools import Tool
from graphkit.errors import AgentConfigurationError, MissingDependencyError

HIDDEN: Final = "***"
_SHORTEST: Final = 4
"""In characters; a shorter secret is not searched for in messages, because it occurs in other words."""


def check_key(text: str, name: str) -> SecretStr:
    """Return a key as a secret.

    Args:
        text: the key.
        name: what it is, for the message.

    Raises:
        AgentConfigurationError: it is empty, or cannot be sent as a header: the client would quote it in its error.
    """
    if not text:
        raise AgentConfigurationError(f"{name} is empty")
    if not (text.isascii() and text.isprintable() and " " not in text):
        raise AgentConfigurationError(
            f"{name} contains a line break, a space or a character that a key cannot have: "
            "check how it was copied or read"
        )
    return SecretStr(text)


def hide_secrets(text: str, secrets: Iterable[SecretStr]) -> str:
    """Return a message of a server with asterisks in place of the secrets that the server was given.

    A server may quote a secret as it is, or as `repr`, JSON and addresses escape it.
    """
    forms: set[str] = set()
    for secret in secrets:
        value = secret.get_secret_value()
        if len(value) < _SHORTEST:
            continue
        forms.add(value)
        forms.add(repr(value)[1:-1])
        forms.add(json.dumps(value)[1:-1])
        forms.add(quote(value, safe=""))
    # The longest first: where one secret contains another, the rest of the longer one would be shown.
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, HIDDEN)
    return text


def require_package(name: str) -> None:
    """Check that a package of the extra `agents` is installed. Importing it would take half a second.

    Raises:
        MissingDependencyError: it is not.
    """
    if importlib.util.find_spec(name) is None:
        raise MissingDependencyError(name, "agents")


_NO_SETTINGS: Final = frozenset({"model_type", "model_attributes_type"})
"""The types of pydantic's errors about a value in place of settings."""


class Problem(NamedTuple):
    """Something that is wrong in a configuration."""

    path: Path
    reason: str

    def __str__(self) -> str:
        key = format_path(self.path)
        return f"{key}: {self.reason}" if key else self.reason


class KeyProblemError(ValueError):
    """What a validator of settings raises about one of their keys; `path` leads from the settings to it."""

    def __init__(self, reason: str, *path: str | int) -> None:
        super().__init__(reason)
        self.path = path


class Settings(BaseModel):
    """A part of a configuration: immutable, without unknown keys, without conversions.

    A wrong value is an error that names its key and does not quote it, because it may be secret.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        arbitrary_types_allowed=True,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )

    error_class: ClassVar[type[AgentConfigurationError | ValueError]] = AgentConfigurationError
    """What the constructor raises. Its argument is the message."""

    def __init__(self, /, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise self.error_class(_describe_problems(error)) from error

    # A validator of the mode "before" would run inside the constructor, which cannot take such keys.
    @model_validator(mode="wrap")
    @classmethod
    def _check_keys(cls, data: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Reject keys that are not strings."""
        if isinstance(data, Mapping):
            for key in data:
                if not isinstance(key, str):
                    raise ValueError(f"keys must be text, not {key!r}: quote it")  # noqa: TRY004 - pydantic collects it
        return validate(data)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Read a mapping, such as a part of a file.

        Raises:
            ValueError: not a mapping, or a key is unknown, missing or wrong.
        """
        checked: object = mapping
        if not isinstance(checked, Mapping):
            raise cls.error_class(f"the configuration must be a mapping, not {type(checked).__name__}")
        try:
            return cls.model_validate(dict(checked))
        except ValidationError as error:
            raise cls.error_class(_describe_problems(error)) from error

    def set_fields(self) -> list[tuple[str, Any]]:
        """Return the names and values that were set, in the order of the class."""
        return [(name, value) for name, value in self if name in self.model_fields_set]

    def dump(self, path: Path = ()) -> dict[str, Any]:
        """Return the values that were set, as JSON and YAML can hold them.

        Args:
            path: the path of these settings, for errors.

        Raises:
            AgentConfigurationError: a value has no plain form. The message names its key.
        """
        plain: dict[str, Any] = {}
        for name, value in self.set_fields():
            # An empty value says the same as none, except a None where the default is something else.
            field = type(self).model_fields.get(name)
            is_default = value is None and field is not None and field.default is None
            is_empty = isinstance(value, list | dict) and not value
            if not is_default and not is_empty:
                plain[name] = dump_value(value, (*path, name))
        return plain


# The types of values that several settings have.

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""A limit of time."""


def parse_address(url: str, *, example: str) -> SplitResult:
    """Return the parts of the address of a server.

    Raises:
        ValueError: it is no address of HTTP. The message names the example.
    """
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in {"http", "https"} and bool(parts.hostname)
    except ValueError:
        is_usable = False
    if not is_usable:
        raise ValueError(f"must be an address such as {example}")
    return parts


def shown_url(url: str) -> str:
    """Return a URL for messages: without user, password, query and fragment, which may be secret."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def as_list(value: Any) -> Any:
    """Return a tuple, which code may give, as a list."""
    return list(value) if isinstance(value, tuple) else value


def _as_secret(value: Any) -> SecretStr:
    if isinstance(value, SecretStr):
        return value
    if not isinstance(value, str):
        raise ValueError("must be a valid string")  # noqa: TRY004 - pydantic collects it
    return SecretStr(value)


Secret = Annotated[SecretStr, BeforeValidator(_as_secret)]
"""A text that no message and no `repr` shows."""


class RetrySettings(Settings):
    """When something that failed is tried again."""

    max_attempts: Annotated[int, Field(ge=1)] = 3
    """How many attempts there are, including the first."""
    initial_delay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.5
    """Seconds between the first attempt and the second."""
    backoff: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 2.0
    """The factor by which the delay grows."""
    max_delay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 128.0
    """The longest delay, in seconds. For the requests to a model, `60` by default."""
    jitter: bool = True
    """Whether a random part is added to each delay."""


def _check_policy(value: Any) -> RetryPolicy:
    if not isinstance(value, RetryPolicy):
        raise ValueError(f"must be a mapping or a RetryPolicy, not {type(value).__name__}")  # noqa: TRY004 - pydantic collects it
    return value


# The tags of unions are parts of the paths of problems; find_problems leaves out those in brackets.


def mapping_or_other(value: Any) -> str:
    """Return the tag of a value that is either a mapping or something else, such as a text or an object."""
    is_mapping = isinstance(value, Mapping | Settings)
    return "<mapping>" if is_mapping else "<other>"


IN_CODE: Final = WithJsonSchema({"type": "null"})
"""Marks a form of a value that only code can give: the schema of files does not have it."""

Retry = Annotated[
    Annotated[RetrySettings, Tag("<mapping>")] | Annotated[Any, AfterValidator(_check_policy), IN_CODE, Tag("<other>")],
    Discriminator(mapping_or_other),
]
"""The settings of a RetryPolicy, or in code the policy itself."""


def make_policy(retry: RetrySettings | RetryPolicy | None, **defaults: Any) -> RetryPolicy | None:
    """Return the policy that settings describe, with other defaults for what they do not set."""
    if retry is None or isinstance(retry, RetryPolicy):
        return retry
    return RetryPolicy(**{**defaults, **retry.model_dump(exclude_unset=True)})


def _describe_problems(error: ValidationError) -> str:
    problems = find_problems(error)
    return "; ".join(map(str, problems))


def find_problems(error: ValidationError) -> list[Problem]:
    """Return what is wrong, each problem once, with the problems inside of nested settings."""
    return list(dict.fromkeys(_problems_in(error, ())))


def _problems_in(error: ValidationError, prefix: Path) -> Iterator[Problem]:
    for problem in error.errors():
        # The path has three parts: that of the outer settings, what pydantic knows, and what our validator knows.
        # Parts in brackets are no keys of the configuration, but the tags of unions, and `[key]`.
        keys = [part for part in problem["loc"] if not str(part).startswith(("<", "["))]
        raised = problem.get("ctx", {}).get("error")
        path = (*prefix, *keys, *getattr(raised, "path", ()))
        # The constructor of nested settings raises one of our errors, whose cause has the details.
        cause = getattr(raised, "__cause__", None)
        if isinstance(cause, ValidationError):
            yield from _problems_in(cause, path)
        else:
            is_no_mapping = problem["type"] in _NO_SETTINGS
            yield Problem(path, "must be a mapping" if is_no_mapping else simplify_message(problem["msg"]))


_FORM: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
PATTERN: Final = r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$"
"""The form of a reference, for JSON schemas."""


def check_reference(text: str) -> str:
    """Return a text if it has the form `module:name`.

    Raises:
        ValueError: it has another form.
    """
    if not _FORM.fullmatch(text):
        raise ValueError(f"must be module:name, such as shop.tools:find_order, not {text!r}")
    return text


def resolve_reference(text: str) -> Any:
    """Import a module and return one of its objects.

    The text must come from the user's own configuration file, never from stored data: importing a
    module runs its code.

    Raises:
        ValueError: the text has another form, there is no such module or name, or the module
            cannot be imported. The cause is chained.
    """
    module_name, _, path = check_reference(text).partition(":")
    found = _import_module(module_name)
    for name in path.split("."):
        if not hasattr(found, name):
            raise ValueError(f"the module {module_name!r} has no {path!r}")
        found = getattr(found, name)
    return found


def _import_module(module_name: str) -> Any:
    """Import a module.

    Raises:
        ValueError: there is none, or its code failed.
    """
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        is_the_module = missing and f"{module_name}.".startswith(f"{missing}.")
        if is_the_module:
            raise ValueError(
                f"there is no module {module_name!r}; modules are searched in PYTHONPATH, "
                "which the commands extend by the current directory"
            ) from error
        raise ValueError(f"{module_name} needs the module {error.name}, which is not installed") from error
    except Exception as error:  # the code of the application may raise anything
        raise ValueError(f"importing {module_name!r} failed: {describe_error(error)}") from error


def describe_reference(thing: Any) -> str:
    """Return the reference to a class or a function of an application.

    Raises:
        ValueError: no reference leads to it, because it is local, a lambda, or from `__main__`.
    """
    module_name = getattr(thing, "__module__", None)
    path = getattr(thing, "__qualname__", None)
    if not isinstance(module_name, str) or not isinstance(path, str):
        raise ValueError(f"{thing!r} has no name that a file can hold: name a class or a function")  # noqa: TRY004 - one kind for all
    if module_name == "__main__":
        raise ValueError(f"{path} is defined in the main program: move it to a module, so that others can import it")
    found: Any = sys.modules.get(module_name)
    for name in path.split("."):
        found = getattr(found, name, None)
    if found is not thing:
        raise ValueError(f"{path} is not a top-level name of {module_name}, so no file can name it")
    return f"{module_name}:{path}"


_PLAIN: Final = (str, int, float, bool, type(None))
_ANY_ERROR: Final = RetryPolicy().retry_on

Path = tuple[str | int, ...]
"""Where in a configuration something is: keys of mappings and indexes of lists."""


def format_path(path: Iterable[str | int]) -> str:
    """Return a path as text: `steps[0].function`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif text:
            text += f".{part}"
        else:
            text = part
    return text


def dump_value(value: Any, path: Path) -> Any:
    """Return a value of a configuration as plain data: names for objects, texts for secrets.

    Raises:
        AgentConfigurationError: it has no plain form. The message names its key.
    """
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, RetryPolicy):
        if value.retry_on != _ANY_ERROR:
            raise _no_plain_form(
                (*path, "retry_on"),
                "a file cannot choose errors; leave retry_on out, or give the policy to the tool in its module, "
                "as in @tool(retry=...)",
            )
        options = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        del options["retry_on"]
        return options
    if isinstance(value, Tool):
        return _name_tool(value, path)
    if isinstance(value, Mapping):
        return {name: dump_value(item, (*path, name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [dump_value(item, (*path, index)) for index, item in enumerate(value)]
    dump = getattr(value, "dump", None)
    return name_object(value, path) if dump is None else dump(path)


def _name_tool(given: Tool, path: Path) -> str:
    # The decorated function has the name of the Tool, but `stop = tool(cancel)` has one that only the module knows.
    module_name = getattr(given.function, "__module__", "")
    module = sys.modules.get(module_name)
    if module_name != "__main__":
        for name, value in getattr(module, "__dict__", {}).items():
            if value is given:
                return f"{module_name}:{name}"
    reason = "a file names tools: give it a name in the module of its function, as in `stop = tool(cancel)`"
    raise _no_plain_form(path, reason)


def name_object(thing: Any, path: Path) -> str:
    """Return the reference to an object of a module; a text is one already.

    Raises:
        AgentConfigurationError: no reference leads to it. The message names its key.
    """
    if isinstance(thing, str):
        return thing
    try:
        return describe_reference(thing)
    except ValueError as error:
        raise _no_plain_form(path, str(error)) from error


def _no_plain_form(path: Path, reason: str) -> AgentConfigurationError:
    return AgentConfigurationError(f"has no plain form: {reason}", key=format_path(path))
