"""CheckpointerConfig and the YAML block."""

import pickle

import pytest
from hypothesis import given, strategies as st

from graphkit import registry
from graphkit.agents import CheckpointerConfig, CheckpointerYAMLHandler
from graphkit.errors import CheckpointerConfigurationError, GraphKitError
from savers import MemorySaver


@pytest.mark.requirement("P1")
def test_memory_is_the_default_and_each_type_is_legal_without_its_keys():
    config = CheckpointerConfig()
    assert (config.type, config.config, config.enabled) == ("memory", None, True)
    for name in ("memory", "versioned_memory", "file", "disk", "filesystem", "sqlite", "postgres"):
        assert CheckpointerConfig(type=name).type == name


@pytest.mark.requirement("P1")
def test_a_wrong_shape_names_the_key_when_it_is_made():
    for fields, words in (
        ({"type": "redis"}, "type: Unsupported checkpointer type: 'redis'; known are .*sqlite"),
        ({"type": None}, "type: must be a valid string"),
        ({"config": "runs.db"}, "config: must be a valid dictionary"),
        ({"enabled": "yes"}, "enabled: must be a valid boolean"),
        ({"db_file": "runs.db"}, "db_file: is unknown"),
    ):
        for make in (CheckpointerConfig, lambda **given: CheckpointerConfig.from_dict(given)):
            with pytest.raises(CheckpointerConfigurationError, match=words) as caught:
                make(**fields)
            assert isinstance(caught.value, ValueError)
            assert caught.value.__cause__ is not None


def test_it_is_immutable_and_pickles_and_compares():
    config = CheckpointerConfig("sqlite", {"db_file": "a.db"})
    with pytest.raises(ValueError, match="frozen"):
        config.type = "file"
    assert pickle.loads(pickle.dumps(config)) == config
    assert config != CheckpointerConfig("sqlite", {"db_file": "b.db"})


def test_its_text_has_no_password():
    config = CheckpointerConfig("postgres", {"connection_string": "postgresql://me:secret@host/db"})
    assert "secret" not in repr(config) + str(config)


@pytest.mark.requirement("P2")
def test_a_wrong_key_is_named_when_it_is_built(tmp_path, monkeypatch):
    for name, config, key in (
        ("sqlite", None, "db_file"),
        ("sqlite", {"db_file": ""}, "db_file"),
        ("sqlite", {"db_file": "a.db", "types": ["x"]}, "^config of the checkpointer type 'sqlite': 'x' cannot be"),
        ("sqlite", {"db_file": "a.db", "nope": 1}, "nope"),
        ("sqlite", {"db_file": "a.db", "name": 1}, "name"),
        ("file", None, "base_directory"),
        ("postgres", None, "connection_string"),
        ("file", {"base_directory": "missing/runs", "lock_timeout": "soon"}, "lock_timeout"),
        ("postgres", {"connection_string": "nonsense"}, "connection_string"),
    ):
        monkeypatch.chdir(tmp_path)
        for use in (CheckpointerConfig.build, CheckpointerConfig.check):
            with pytest.raises(CheckpointerConfigurationError, match=key):
                use(CheckpointerConfig(name, config))
        CheckpointerConfig(name, config, enabled=False).check()
        assert list(tmp_path.iterdir()) == []


def test_a_registered_kind_is_accepted(monkeypatch):
    monkeypatch.setattr(registry._SAVERS, "registered", {})
    with pytest.raises(CheckpointerConfigurationError):
        CheckpointerConfig("redis")
    registry.register_saver("redis", lambda url: MemorySaver())
    assert isinstance(CheckpointerConfig("redis", {"url": "x"}).build(), MemorySaver)
    with pytest.raises(CheckpointerConfigurationError, match="url"):
        CheckpointerConfig("redis").build()


@pytest.mark.requirement("P41")
def test_a_block_is_parsed():
    parsed = CheckpointerYAMLHandler().parse_checkpointer_config({"type": "sqlite", "config": {"db_file": "a.db"}})
    assert parsed == CheckpointerConfig("sqlite", {"db_file": "a.db"})
    assert CheckpointerYAMLHandler().parse_checkpointer_config({}) == CheckpointerConfig()


@pytest.mark.requirement("P41")
def test_a_wrong_block_is_an_error():
    for block in (None, [], "memory", 3, {"type": "redis"}, {1: 2}, {"typ": "memory"}):
        with pytest.raises(CheckpointerConfigurationError):
            CheckpointerYAMLHandler().parse_checkpointer_config(block)
        assert CheckpointerYAMLHandler().validate_checkpointer_config(block) is False


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.dates(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text() | st.integers() | st.none() | st.just("type"), inner)
        | st.sets(st.integers())
        | st.tuples(inner)
    ),
    max_leaves=8,
)
BLOCKS = PLAIN | st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["memory", "sqlite", "file", "postgres"]) | PLAIN,
        "config": st.dictionaries(st.text(), PLAIN) | PLAIN,
        "enabled": st.booleans() | PLAIN,
        "self": PLAIN,
        "unknown": PLAIN,
    },
)


@pytest.mark.requirement("P42")
@given(BLOCKS)
def test_validating_never_raises_and_agrees_with_parsing(block):
    handler = CheckpointerYAMLHandler()
    is_valid = handler.validate_checkpointer_config(block)
    try:
        handler.parse_checkpointer_config(block)
    except GraphKitError:
        assert is_valid is False
    else:
        assert is_valid is True
