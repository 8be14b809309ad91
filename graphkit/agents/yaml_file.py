"""YamlFile: the plain data of a YAML file, and the line of each key. Constructs no objects."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, final

from graphkit.agents.settings import Path, format_path
from graphkit.errors import (
    AgentConfigurationError,
    AgentFileNotFoundError,
    AgentFileSyntaxError,
    MissingDependencyError,
)

_TAG: Final = "tag:yaml.org,2002:"
_MAPPING: Final = _TAG + "map"
_SEQUENCE: Final = _TAG + "seq"
_MERGE: Final = _TAG + "merge"
_TEXTS: Final = frozenset({_TAG + "str", _TAG + "timestamp"})
_SCALARS: Final = frozenset({_TAG + "null", _TAG + "bool", _TAG + "int", _TAG + "float"})
_MOST_VALUES: Final = 100_000
"""Aliases may make a small file large; one with more values is refused."""
_VARIABLE: Final = re.compile(r"\$(\$\{|\{([^{}]*)\})")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class _Entry(NamedTuple):
    """A key of a mapping, where it stands, and its value."""

    key: str
    node: Any
    value: Any


@final
class YamlFile:
    """The content of a YAML file.

    Attributes:
        path: the file, as it was given.
        data: its values: None, bool, int, float, str, list and dict with str as keys.
        variables: the name of the variable that a text contains, by the path of the text.
        written: texts in which a variable was replaced, and how the file writes them.
    """

    def __init__(self, path: str | os.PathLike[str], environment: Mapping[str, str]) -> None:
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
        self.path = os.fspath(path)
        self._environment = environment
        self._lines: dict[Path, int] = {}
        self._count = 0
        self.variables: dict[Path, str] = {}
        self.written: dict[str, str] = {}
        root = self._parse()
        try:
            self.data: dict[str, Any] = self._read(root, (), ())
        except RecursionError as error:
            raise AgentFileSyntaxError("is nested too deeply", file=self.path) from error

    def find_line(self, path: Path) -> int | None:
        """Return the line of a key, or of the closest key around it, from 1."""
        for length in range(len(path), 0, -1):
            if path[:length] in self._lines:
                return self._lines[path[:length]]
        return 1

    def make_error(self, reason: str, path: Path = ()) -> AgentConfigurationError:
        """Return an error that names the file, the line and the key."""
        return AgentConfigurationError(reason, file=self.path, line=self.find_line(path), key=format_path(path))

    # From bytes to nodes

    def _parse(self) -> Any:
        """Return the node of the root, a mapping."""
        try:
            with open(self.path, "rb") as file:  # noqa: PTH123 - the path may be bytes or PathLike
                text = file.read().decode("utf-8-sig")
        except FileNotFoundError as error:
            raise AgentFileNotFoundError("there is no such file", file=self.path) from error
        except UnicodeDecodeError as error:
            raise AgentFileSyntaxError(f"is not UTF-8: {error}", file=self.path) from error
        # Nodes, not objects: they have the lines, and composing constructs nothing that a tag could name.
        yaml = _import_yaml()
        try:
            root = yaml.compose(text, yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = None if mark is None else mark.line + 1
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

    # From nodes to plain data. `parents` are the nodes around a node.

    def _read(self, node: Any, path: Path, parents: tuple[Any, ...]) -> Any:
        # An alias is the same node again, so ten lines can mean billions of values: each visit counts.
        self._count += 1
        if self._count > _MOST_VALUES:
            raise self.make_error(f"has more than {_MOST_VALUES} values, counting those of aliases", path)
        self._refuse_cycle(node, path, parents)
        if node.id == "mapping" and node.tag == _MAPPING:
            found: dict[str, Any] = {}
            for entry in self._entries(node, path, parents):
                where = (*path, entry.key)
                self._lines[where] = _line_of(entry.node)
                found[entry.key] = self._read(entry.value, where, (*parents, node))
            return found
        if node.id == "sequence" and node.tag == _SEQUENCE:
            return self._read_items(node, path, parents)
        if node.id == "scalar" and node.tag in _TEXTS:
            return self._replace_variables(node, path)
        if node.id == "scalar" and node.tag in _SCALARS:
            yaml = _import_yaml()
            try:
                return yaml.constructor.SafeConstructor().construct_object(node)
            except ValueError as error:
                raise self._error_at(node, f"cannot be read: {error}", path) from error
        tag = node.tag.removeprefix(_TAG)
        raise self._error_at(
            node, f"has the tag {tag!r}: a configuration has only texts, numbers, lists and mappings", path
        )

    def _refuse_cycle(self, node: Any, path: Path, parents: tuple[Any, ...]) -> None:
        for parent in parents:
            if parent is node:
                raise self._error_at(node, "contains itself: the anchors form a cycle", path)

    def _read_items(self, node: Any, path: Path, parents: tuple[Any, ...]) -> list[Any]:
        items: list[Any] = []
        for index, item in enumerate(node.value):
            where = (*path, index)
            self._lines[where] = _line_of(item)
            items.append(self._read(item, where, (*parents, node)))
        return items

    def _entries(self, node: Any, path: Path, parents: tuple[Any, ...]) -> Iterator[_Entry]:
        """Yield the entries of a mapping, those that it merges first; each key once."""
        # As YAML defines `<<`: a key of the mapping itself wins, and then that of the first mapping in the list. The
        # line of a merged key is where it is written.
        own: dict[str, _Entry] = {}
        merged: dict[str, _Entry] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                for entry in self._merged_entries(value_node, path, (*parents, node)):
                    merged.setdefault(entry.key, entry)
                continue
            if key_node.id != "scalar" or key_node.tag not in _TEXTS:
                raise self._error_at(key_node, "keys must be text: quote the key", path)
            key: str = key_node.value
            first = own.get(key)
            if first is not None:
                line = _line_of(first.node)
                raise self._error_at(key_node, f"occurs twice; it is in line {line} already", (*path, key))
            own[key] = _Entry(key, key_node, value_node)
        merged.update(own)
        yield from merged.values()

    def _merged_entries(self, node: Any, path: Path, parents: tuple[Any, ...]) -> Iterator[_Entry]:
        self._refuse_cycle(node, path, parents)
        if node.id == "mapping":
            yield from self._entries(node, path, parents)
        elif node.id == "sequence":
            for item in node.value:
                yield from self._merged_entries(item, path, (*parents, node))
        else:
            raise self._error_at(node, "<< must be followed by a mapping", path)

    def _replace_variables(self, node: Any, path: Path) -> str:
        """Return a text with the values of the variables that it names."""

        def replace(match: re.Match[str]) -> str:
            if match[1] == "${":
                return "${"
            name = match[2]
            if not _NAME.fullmatch(name):
                reason = f"${{{name}}} must name an environment variable, such as ${{HOME}}"
                raise self._error_at(node, reason, path)
            if name not in self._environment:
                raise self._error_at(node, f"the environment variable {name} is not set", path)
            self.variables[path] = name
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


def _import_yaml() -> Any:
    try:
        import yaml
    except ImportError as error:
        raise MissingDependencyError("PyYAML", "agents") from error
    return yaml
