"""docs/agents-configuration.md: the reference is that of the models, and each YAML block of the docs is loaded."""

import json
import re
import sys

import pytest

from docs.make_agents_configuration import MARK, PAGE, make_reference
from graphkit.agents import AgentConfig, load_agent, load_agent_config
from graphkit.agents.yaml_loader import check_agent_file
from graphkit.retention import RetentionPolicy

DOCS = PAGE.parent
BLOCK = re.compile(r"^```(yaml|python)\n# (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [page for page in sorted(DOCS.glob("*.md")) if "```yaml" in page.read_text(encoding="utf-8")]
RETENTION = "retention.yaml"
"""The only file that configures no agent."""
ENVIRONMENT = {"SHOP_DATA": "data", "SHOP_KEY": "k"}


def write_files(page, directory):
    """Write the blocks of a page that begin with the name of a file; return the names of the YAML files."""
    names = []
    for language, name, body in BLOCK.findall(page.read_text(encoding="utf-8")):
        (directory / name).write_text(body, encoding="utf-8")
        if language == "yaml":
            names.append(name)
    return names


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    loaded = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - loaded:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def test_the_reference_is_that_of_the_models():
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition(MARK)[2] == "\n" + make_reference(), "run python docs/make_agents_configuration.py"


@pytest.mark.requirement("P45")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_yaml_block_names_its_file_and_is_valid(page, directory):
    names = write_files(page, directory)
    assert len(names) == page.read_text(encoding="utf-8").count("```yaml")
    before = sorted(directory.iterdir())
    for name in names:
        if name == RETENTION:
            assert RetentionPolicy.from_file(name).statuses
            continue
        config = load_agent_config(name, environment=ENVIRONMENT)
        checked = check_agent_file(name, environment=ENVIRONMENT)
        assert isinstance(checked, AgentConfig)
        plain = config.to_dict()
        decoded = json.loads(json.dumps(plain))
        assert AgentConfig.from_dict(decoded).to_dict() == plain
    assert [path for path in sorted(directory.iterdir()) if path.name != "__pycache__"] == before


def test_the_agents_without_a_provider_run(directory):
    write_files(PAGE, directory)
    assert load_agent("echo.yaml").run("Hello")["messages"][-1]["content"] == "You said: Hello"
    desk = load_agent("desk.yaml")
    assert desk.run("Hello", "t")["messages"][1]["content"] == "You said: Hello"
    desk.graph.compile_config.saver.close()
    assert (directory / "desk.db").exists()
    assert any((directory / "audits").iterdir())
