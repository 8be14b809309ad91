"""Write the reference of agent files from their models: python docs/make_agents_configuration.py."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from graphkit.agents.yaml_loader import make_schema

Schema = dict[str, Any]
PAGE = Path(__file__).resolve().with_name("agents-configuration.md")
MARK = "<!-- From here on generated from the models: python docs/make_agents_configuration.py -->\n"
SECTIONS = {
    "AgentConfig": "Agent",
    "LlmStepSettings": "Step: llm",
    "LlmStepConfig": "Step: llm, config",
    "FunctionStepSettings": "Step: function",
    "AgentStepSettings": "Step: agent",
    "ModelSettings": "Model",
    "ToolSettings": "Tool",
    "McpServerSettings": "MCP server",
    "McpCallSettings": "MCP calls",
    "CheckpointerConfig": "Checkpointer",
    "ThreadIdSettings": "Thread id",
    "RetrySettings": "Retry",
}
REPEATED = {"LlmStepConfig": ("ModelSettings", "LlmStepSettings")}
"""The models that describe keys of another one."""
NEW = {"LlmStepConfig": ("provider", "model")}
"""The keys among them that mean something else there."""
FORMS = {"Reference": "`module:name`", "StateType": "`module:name` or a name", "ModelName": "`provider:model`"}
SIMPLE = {"string": "text", "integer": "whole number", "number": "number", "boolean": "boolean", "object": "mapping"}


def _anchor(title: str) -> str:
    return title.lower().replace(":", "").replace(",", "").replace(" ", "-")


def _type_of(schema: Schema) -> str:  # noqa: PLR0911 - a table of cases
    """A type as words, with links to the sections of other models."""
    if "$ref" in schema:
        _, _, name = schema["$ref"].rpartition("/")
        title = SECTIONS[name]
        return f"[{title}](#{_anchor(title)})"
    kinds = schema.get("anyOf") or schema.get("oneOf")
    if kinds:
        words = [_type_of(kind) for kind in kinds if kind.get("type") != "null"]
        return " or ".join(dict.fromkeys(words))
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("title") in FORMS:
        return FORMS[schema["title"]]
    if schema.get("type") == "array":
        return f"list of {_type_of(schema['items'])}"
    values = schema.get("additionalProperties")
    if schema.get("type") == "object" and isinstance(values, dict):
        return f"mapping of names to {_type_of(values)}"
    return SIMPLE.get(schema.get("type", ""), "any value")


def _default_of(name: str, schema: Schema, required: Collection[str]) -> str:
    if name in required:
        return "required"
    default = schema.get("default")
    if default in (None, "", [], {}):
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _leave_out_repeated(name: str, model: Schema, definitions: Schema) -> tuple[Schema, str]:
    """The keys of a model that are not described elsewhere, and a sentence that says where the others are."""
    others = REPEATED.get(name, ())
    elsewhere = {key for other in others for key, schema in definitions[other]["properties"].items()}
    kept = {
        key: schema for key, schema in model["properties"].items() if key not in elsewhere or key in NEW.get(name, ())
    }
    links = " and ".join(f"[{SECTIONS[other]}](#{_anchor(SECTIONS[other])})" for other in others)
    return kept, f"\nAll other keys are those of {links}.\n" if others else ""


def _make_section(name: str, model: Schema, definitions: Schema) -> str:
    properties, rest = _leave_out_repeated(name, model, definitions)
    summary, _, _ = model["description"].partition("\n\n")
    heading = SECTIONS[name]
    text = f"### {heading}\n\n"
    text += summary.replace("\n", " ")
    text += "\n\n| key | value | default | meaning |\n|---|---|---|---|\n"
    required = model.get("required", ())
    for key, schema in properties.items():
        value = _type_of(schema)
        default = _default_of(key, schema, required)
        meaning = " ".join(schema["description"].split())
        text += f"| `{key}` | {value} | {default} | {meaning} |\n"
    return text + rest


def make_reference() -> str:
    """Return the part of the page that is generated."""
    definitions = make_schema()["$defs"]
    assert set(definitions) == set(SECTIONS), "name each model of the configuration in SECTIONS"
    return "\n".join(_make_section(name, definitions[name], definitions) for name in SECTIONS)


if __name__ == "__main__":
    written = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    PAGE.write_text(written + MARK + "\n" + make_reference(), encoding="utf-8")
