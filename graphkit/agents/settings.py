"""Settings: base of the models of a configuration; their secrets, their problems, and their form as plain data.

YamlFile: the plain data of a YAML file, and the line of each key, where problems are. It constructs no objects.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Annotated, Any, ClassVar, Final, NamedTuple, Self, TypeVar, final
from urllib.parse import SplitResult, quote, urlsplit, urlunsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    SecretStr,
    Tag,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.functional_validators import ModelWrapValidatorHandler  # pydantic 2.8 does not export it

from graphkit._options import import_yaml
from graphkit._plan.retry import RetryPolicy
from graphkit._wording import explain_failed_import, simplify_message, suggest
from graphkit.agents.tools import Tool
from graphkit.errors import (
    AgentConfigurationError,
    AgentFileNotFoundError,
    AgentFileSyntaxError,
    MissingDependencyError,
)

_MappingT = TypeVar("_MappingT")
_OtherT = TypeVar("_OtherT")

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

    A server may quote a secret as it is, or as `repr`, JSON and addresses escape it; and the key of a header, such
    as `Bearer KEY`, alone.
    """
    forms: set[str] = set()
    for secret in secrets:
        text_of_secret = secret.get_secret_value()
        for value in (text_of_secret, text_of_secret.rpartition(" ")[2]):
            if len(value) < _SHORTEST:
                continue
            forms.add(value)
            forms.add(repr(value)[1:-1])
            forms.add(json.dumps(value)[1:-1])
            forms.add(quote(value, safe="", errors="surrogatepass"))
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


_NO_MAPPING: Final = frozenset({"model_type", "model_attributes_type", "dict_type"})
"""The types of pydantic's errors about a value in place of settings or of another mapping."""
_KEYS: Final[dict[str, Sequence[str]]] = {}
"""The keys of each class of settings, by the name of the class, which pydantic's errors have."""


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

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        _KEYS[cls.__name__] = list(cls.model_fields)

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
    def from_dict(cls, mapping: Mapping[str, Any]) -> Self:
        """Read plain data: what `to_dict` returned, or a part of a file.

        Nothing is imported: names of functions and classes stay names.

        Raises:
            AgentConfigurationError, CheckpointerConfigurationError: it is no mapping, or a key is unknown, missing or
                wrong. The message names each. The class is that which the constructor raises.
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
            field = type(self).model_fields[name]
            if field.exclude:  # a key, which what is loaded takes from the environment
                continue
            # An empty value that is the default says nothing. Others do: no tools of a server are not all of them.
            is_empty = value is None or (isinstance(value, list | dict) and not value)
            if not is_empty or value != field.get_default(call_default_factory=True):
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


MappingOr = Annotated[
    Annotated[_MappingT, Tag("<mapping>")] | Annotated[_OtherT, Tag("<other>")], Discriminator(mapping_or_other)
]
"""`MappingOr[X, Y]`: X where the value is a mapping, and else Y."""

IN_CODE: Final = WithJsonSchema({"type": "null"})
"""Marks a form of a value that only code can give: the schema of files does not have it."""

Retry = MappingOr[RetrySettings, Annotated[Any, AfterValidator(_check_policy), IN_CODE]]
"""The settings of a RetryPolicy, or in code the policy itself."""


def make_policy(retry: RetrySettings | RetryPolicy | None, **defaults: Any) -> RetryPolicy | None:
    """Return the policy that settings describe, with other defaults for what they do not set."""
    if retry is None or isinstance(retry, RetryPolicy):
        return retry
    return RetryPolicy(**{**defaults, **retry.model_dump(exclude_unset=True)})


def _describe_problems(error: ValidationError) -> str:
    problems = find_problems(error)
    return "; ".join(map(str, problems))


def find_problems(error: ValidationError, prefix: Path = ()) -> list[Problem]:
    """Return what is wrong, each problem once, with the problems inside of nested settings."""
    found: list[Problem] = []
    for problem in error.errors():
        # The path has three parts: that of the outer settings, what pydantic knows, and what our validator knows.
        # Parts in brackets are no keys of the configuration, but the tags of unions, and `[key]`.
        keys = [part for part in problem["loc"] if not str(part).startswith(("<", "["))]
        raised = problem.get("ctx", {}).get("error")
        path = (*prefix, *keys, *getattr(raised, "path", ()))
        # The constructor of nested settings raises one of our errors, whose cause has the details.
        cause = getattr(raised, "__cause__", None)
        if isinstance(cause, ValidationError):
            found += find_problems(cause, path)
            continue
        reason = simplify_message(problem["msg"])
        if problem["type"] in _NO_MAPPING:
            reason = "must be a mapping"
        elif problem["type"] == "extra_forbidden":
            reason += suggest(str(path[-1]), _KEYS.get(error.title, ()), most=1)
        found.append(Problem(path, reason))
    return list(dict.fromkeys(found))


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
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # the code of the application may raise anything
        places = "; modules are searched in PYTHONPATH, which the commands extend by the current directory"
        raise ValueError(explain_failed_import(module_name, error, places)) from error
    for name in path.split("."):
        if not hasattr(found, name):
            raise ValueError(f"the module {module_name!r} has no {path!r}")
        found = getattr(found, name)
    return found


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
        # The decorated function has the name of the Tool, but `stop = tool(cancel)` has one that only the module knows.
        module_name = getattr(value.function, "__module__", "")
        module = sys.modules.get(module_name)
        names = [name for name, known in getattr(module, "__dict__", {}).items() if known is value]
        if module_name == "__main__" or not names:
            reason = "a file names tools: give it a name in the module of its function, as in `stop = tool(cancel)`"
            raise _no_plain_form(path, reason)
        return f"{module_name}:{names[0]}"
    if isinstance(value, Mapping):
        return {name: dump_value(item, (*path, name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [dump_value(item, (*path, index)) for index, item in enumerate(value)]
    return value.dump(path) if isinstance(value, Settings) else name_object(value, path)


def name_object(thing: Any, path: Path) -> str:
    """Return the reference to a class or a function of an application; a text is one already.

    Raises:
        AgentConfigurationError: no reference leads to it, because it is local, a lambda, or from `__main__`. The
            message names its key.
    """
    if isinstance(thing, str):
        return thing
    module_name = getattr(thing, "__module__", None)
    name = getattr(thing, "__qualname__", None)
    if not isinstance(module_name, str) or not isinstance(name, str):
        raise _no_plain_form(path, f"{thing!r} has no name that a file can hold: name a class or a function")
    if module_name == "__main__":
        reason = f"{name} is defined in the main program: move it to a module, so that others can import it"
        raise _no_plain_form(path, reason)
    found: Any = sys.modules.get(module_name)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not thing:
        raise _no_plain_form(path, f"{name} is not a top-level name of {module_name}, so no file can name it")
    return f"{module_name}:{name}"


def _no_plain_form(path: Path, reason: str) -> AgentConfigurationError:
    return AgentConfigurationError(f"has no plain form: {reason}", key=format_path(path))


# YAML files

_TAG: Final = "tag:yaml.org,2002:"
_MAPPING: Final = _TAG + "map"
_SEQUENCE: Final = _TAG + "seq"
_MERGE: Final = _TAG + "merge"
_TEXTS: Final = frozenset({_TAG + "str", _TAG + "timestamp"})
_SCALARS: Final = frozenset({_TAG + "null", _TAG + "bool", _TAG + "int", _TAG + "float"})
_MOST_VALUES: Final = 100_000
"""Aliases may make a small file large; one with more values is refused."""
_VARIABLE: Final = re.compile(r"\$(\$\{|\{(?:([^{}]*)\})?)")


@final
class YamlFile:
    """The content of a YAML file.

    Attributes:
        path: the file, as it was given.
        data: its values: None, bool, int, float, str, list and dict with str as keys.
        variables: the path of each text that names a variable, with the name of the variable.
        written: texts in which a variable was replaced, and how the file writes them.
    """

    def __init__(self, path: FilePath, environment: Mapping[str, str]) -> None:
        """Read a file.

        `${NAME}` in a text stands for the environment variable, and `$${` for `${`. Merge keys and
        aliases are resolved.

        Args:
            path: the file, in UTF-8.
            environment: the environment variables.

        Raises:
            AgentFileNotFoundError: there is no such file.
            AgentFileSyntaxError: it is not YAML in UTF-8, or the root is not a mapping.
            AgentConfigurationError: a key occurs twice, a value is of a type that a configuration
                does not have, aliases form a cycle, or an environment variable is missing.
            OSError: the file cannot be read.
        """
        self.path = str(path)
        self._environment = environment
        self._lines: dict[Path, int] = {}
        self._count = 0
        self.variables: list[tuple[Path, str]] = []
        self.written: dict[str, str] = {}
        root = self._parse(path)
        try:
            self.data: dict[str, Any] = self._read(root, root, (), ())
        except RecursionError as error:
            raise AgentFileSyntaxError("is nested too deeply", file=self.path) from error

    def find_line(self, path: Path) -> int:
        """Return the line of a key, or of the closest key around it, from 1."""
        for length in range(len(path), 0, -1):
            if path[:length] in self._lines:
                return self._lines[path[:length]]
        return 1

    def make_error(self, reason: str, path: Path = ()) -> AgentConfigurationError:
        """Return an error that names the file, the line and the key."""
        return AgentConfigurationError(reason, file=self.path, line=self.find_line(path), key=format_path(path))

    # From bytes to nodes

    def _parse(self, path: FilePath) -> Any:
        """Return the node of the root, a mapping."""
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            raise AgentFileNotFoundError("there is no such file", file=self.path) from error
        except UnicodeDecodeError as error:
            raise AgentFileSyntaxError(f"is not UTF-8: {error}", file=self.path) from error
        # Nodes, not objects: they have the lines, and composing constructs nothing that a tag could name.
        yaml = import_yaml()
        try:
            root = yaml.compose(text, yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1
            raise AgentFileSyntaxError(f"is not YAML: {error.problem}", file=self.path, line=line) from error
        except (yaml.YAMLError, RecursionError) as error:
            reason = str(error).splitlines()[0]
            raise AgentFileSyntaxError(f"is not YAML: {reason}", file=self.path) from error
        if isinstance(root, yaml.MappingNode):
            return root
        found = "empty" if root is None else f"a {root.id}"
        raise AgentFileSyntaxError(
            f"the file must be a mapping with keys such as steps, and it is {found}", file=self.path, line=1
        )

    # From nodes to plain data. `key_node` has the line of a value: its key, or in a list itself. `parents` are the
    # nodes around a node.

    def _read(self, node: Any, key_node: Any, path: Path, parents: tuple[Any, ...]) -> Any:
        self._lines[path] = _line_of(key_node)
        self._visit(node, path, parents)
        inside = (*parents, node)
        if node.id == "mapping" and node.tag == _MAPPING:
            found: dict[str, Any] = {}
            for key, (at, value) in self._entries(node, path, parents).items():
                found[key] = self._read(value, at, (*path, key), inside)
            return found
        if node.id == "sequence" and node.tag == _SEQUENCE:
            return [self._read(item, item, (*path, index), inside) for index, item in enumerate(node.value)]
        if node.id == "scalar" and node.tag in _TEXTS:
            return self._replace_variables(node, path)
        if node.id == "scalar" and node.tag in _SCALARS:
            yaml = import_yaml()
            try:
                return yaml.constructor.SafeConstructor().construct_object(node)
            except (LookupError, ValueError) as error:  # `!!bool maybe` is a KeyError of the library
                raise self._error_at(node, f"cannot be read as {node.tag.removeprefix(_TAG)}", path) from error
        tag = node.tag.removeprefix(_TAG)
        raise self._error_at(
            node, f"has the tag {tag!r}: a configuration has only texts, numbers, lists and mappings", path
        )

    def _visit(self, node: Any, path: Path, parents: tuple[Any, ...]) -> None:
        """Refuse a node that is in itself, and a file with too many values."""
        # An alias or a merge is the same node again, so ten lines can mean billions of values: each visit counts.
        self._count += 1
        if self._count > _MOST_VALUES:
            raise self.make_error(f"has more than {_MOST_VALUES} values, counting those of aliases", path)
        if any(parent is node for parent in parents):
            raise self._error_at(node, "contains itself: the anchors form a cycle", path)

    def _entries(self, node: Any, path: Path, parents: tuple[Any, ...]) -> dict[str, tuple[Any, Any]]:
        """Return the nodes of each key of a mapping and of its value, with what the mapping merges."""
        # As YAML defines `<<`: a key of the mapping itself wins, and then that of the first mapping in the list. The
        # line of a merged key is where it is written.
        own: dict[str, tuple[Any, Any]] = {}
        merged: dict[str, tuple[Any, Any]] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                self._merge(value_node, path, (*parents, node), merged)
                continue
            if key_node.id != "scalar" or key_node.tag not in _TEXTS:
                raise self._error_at(key_node, "keys must be text: quote the key", path)
            key = key_node.value
            if key in own:
                line = _line_of(own[key][0])
                raise self._error_at(key_node, f"occurs twice; it is in line {line} already", (*path, key))
            own[key] = (key_node, value_node)
        return {**merged, **own}

    def _merge(self, node: Any, path: Path, parents: tuple[Any, ...], merged: dict[str, tuple[Any, Any]]) -> None:
        """Add the entries of what follows `<<`, a mapping or a list of them."""
        self._visit(node, path, parents)
        if node.id == "mapping":
            for key, nodes in self._entries(node, path, parents).items():
                merged.setdefault(key, nodes)
        elif node.id == "sequence":
            for item in node.value:
                self._merge(item, path, (*parents, node), merged)
        else:
            raise self._error_at(node, "<< must be followed by a mapping", path)

    def _replace_variables(self, node: Any, path: Path) -> str:
        """Return a text with the values of the variables that it names."""

        def replace(match: re.Match[str]) -> str:
            if match[1] == "${":
                return "${"
            name = match[2] or ""
            if not name.isidentifier():
                reason = (
                    f"{match[0]} must name an environment variable, such as ${{HOME}}; $${{ stands for the text ${{"
                )
                raise self._error_at(node, reason, path)
            if name not in self._environment:
                raise self._error_at(node, f"the environment variable {name} is not set", path)
            self.variables.append((path, name))
            return self._environment[name]

        # One pass: a value that contains `${` is not searched again. `written` lets `to_dict` write the name of the
        # variable instead of its value, which may be secret.
        text: str = node.value
        replaced = _VARIABLE.sub(replace, text)
        if replaced != text:
            self.written[replaced] = text
        return replaced

    def _error_at(self, node: Any, reason: str, path: Path) -> AgentConfigurationError:
        return AgentConfigurationError(reason, file=self.path, line=_line_of(node), key=format_path(path))


def _line_of(node: Any) -> int:
    line: int = node.start_mark.line
    return line + 1
