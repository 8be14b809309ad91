import asyncio
import inspect
import itertools

import pytest

from graphkit import BaseCheckpointSaver, HasVersions, abc
from graphkit.abc import SupportsRemove, SupportsReplay
from graphkit.errors import CheckpointerConfigurationError
from graphkit.testing import ScriptedSaver, made
from savers import MemorySaver, SaverWrapper, ValidatingSaver, VersionedMemorySaver

QUALITIES = [name for name, _ in inspect.getmembers(BaseCheckpointSaver, inspect.isdatadescriptor) if name[0] != "_"]
"""The properties of the contract: what a saver declares about itself."""
LOCAL = {"threadId"}  # returns a config's thread id, and needs no store


def methods_of(contract):
    found = inspect.getmembers(contract, inspect.isfunction)
    return sorted(name for name, _ in found if not name.startswith("_") and name not in LOCAL)


class Recorder:
    """Stands for a saver: notes each call, and answers it with what it was asked."""

    def __init__(self):
        self.called = []

    def __getattr__(self, name):
        def call(*args, **kwargs):
            self.called.append((name, args, kwargs))
            return self.called[-1]

        async def acall(*args, **kwargs):
            return call(*args, **kwargs)

        return acall if inspect.iscoroutinefunction(getattr(BaseCheckpointSaver, name, None)) else call


def arguments_for(method):
    """A value of its own for each parameter, in the way it has to be passed."""
    args, kwargs = [], {}
    for name, parameter in list(inspect.signature(method).parameters.items())[1:]:
        if parameter.kind is parameter.KEYWORD_ONLY:
            kwargs[name] = f"the {name}"
        elif parameter.kind is parameter.VAR_KEYWORD:
            kwargs |= {"one": "of them", "another": "of them"}
        elif parameter.kind is parameter.VAR_POSITIONAL:
            args += [f"the {name}", f"more {name}"]
        else:
            args.append(f"the {name}")
    return tuple(args), kwargs


def test_a_wrapper_has_versions_if_its_delegate_has():
    assert not isinstance(SaverWrapper(MemorySaver()), HasVersions)

    wrapper = ValidatingSaver(SaverWrapper(VersionedMemorySaver()))
    assert isinstance(wrapper, HasVersions)
    assert isinstance(wrapper, ValidatingSaver)
    assert type(wrapper).__name__ == "ValidatingSaver"
    assert type(wrapper) is type(ValidatingSaver(VersionedMemorySaver()))
    wrapper.put(None, made({"n": 1}))
    assert wrapper.release(None).version == 1
    assert wrapper.get_version(None) == wrapper.getVersion(None) == "1"


CAPABILITIES = [getattr(abc, name) for name in abc.__all__ if name.startswith("Supports")]
OPTIONAL = [protocol for protocol in CAPABILITIES if not isinstance(MemorySaver(), protocol)]


class Capable(MemorySaver, *OPTIONAL):
    """Has the methods of each optional protocol."""


@pytest.mark.parametrize(
    "wrap", [SaverWrapper, ValidatingSaver, ScriptedSaver, lambda saver: ScriptedSaver(SaverWrapper(saver))]
)
def test_a_wrapper_has_the_optional_methods_of_its_delegate(wrap):
    assert [protocol for protocol in OPTIONAL if isinstance(wrap(MemorySaver()), protocol)] == []
    wrapper = wrap(Capable())
    assert [protocol for protocol in OPTIONAL if isinstance(wrapper, protocol)] == OPTIONAL
    assert isinstance(wrapper, SupportsRemove)
    assert not isinstance(wrapper, HasVersions)
    assert type(wrapper) is type(wrap(Capable()))


@pytest.mark.parametrize(
    ("kind", "contract"),
    [
        (MemorySaver, BaseCheckpointSaver),
        (VersionedMemorySaver, HasVersions),
        *((Capable, each) for each in [SupportsRemove, *OPTIONAL]),
    ],
)
def test_every_method_is_forwarded(kind, contract):
    wrapper = SaverWrapper(kind())
    for name in methods_of(contract):
        method = getattr(contract, name)
        args, kwargs = arguments_for(method)
        wrapper.delegate = Recorder()
        result = getattr(wrapper, name)(*args, **kwargs)
        if inspect.iscoroutine(result):
            result = asyncio.run(result)
        snake = method.__name__  # a Java name is an alias, and is forwarded by the name of the method
        assert wrapper.delegate.called == [(snake, args, kwargs)]
        assert result == wrapper.delegate.called[0]


@pytest.mark.parametrize("wrap", [SaverWrapper, ValidatingSaver, ScriptedSaver])
def test_a_wrapper_closes_its_delegate_if_that_can_be_closed(wrap):
    class Closing(MemorySaver):
        is_closed = False

        def close(self):
            self.is_closed = True

    inner = Closing()
    saver = wrap(inner)
    with saver as entered:
        assert entered is saver
        assert not inner.is_closed
    assert inner.is_closed


@pytest.mark.parametrize("wrap", [SaverWrapper, ValidatingSaver, ScriptedSaver])
def test_a_wrapper_has_the_qualities_of_its_delegate(wrap):
    for quality, declared in itertools.product(QUALITIES, (True, False)):
        delegate = type("Delegate", (MemorySaver,), {quality: declared})()
        assert getattr(wrap(delegate), quality) is declared


def test_a_wrapper_of_versions_wants_versions():
    wrapper = SaverWrapper(VersionedMemorySaver())
    with pytest.raises(CheckpointerConfigurationError, match="keeps no versions"):
        type(wrapper)(MemorySaver())


class Shouting(SaverWrapper):
    """Overrides a method of each kind, in one spelling and without its async twin."""

    def put(self, config, checkpoint):
        return super().put(config, made({"text": checkpoint.state["text"].upper()}, id=checkpoint.id))

    def getWrites(self, config):
        return {**super().get_writes(config), "shouted": True}

    async def aget(self, config=None):
        return "of my own"


def test_an_overridden_method_holds_for_its_twins_and_spellings():
    saver = Shouting(MemorySaver())
    saver.put(None, made({"text": "a"}))
    assert saver.get().state == {"text": "A"}
    asyncio.run(saver.aput(None, made({"text": "b"})))
    assert saver.get().state == {"text": "B"}
    assert saver.get_writes(None) == saver.getWrites(None) == {"shouted": True}
    assert asyncio.run(saver.aget_writes(None)) == asyncio.run(saver.agetWrites(None)) == {"shouted": True}
    assert asyncio.run(saver.aget()) == "of my own"


@pytest.mark.requirement("L16")
@pytest.mark.parametrize(
    ("checkpoint", "reason"), [(made({"n": 1}, node_id=""), "node_id is empty"), (made({}), "state is empty")]
)
def test_a_validating_saver_refuses_empty_nodes_and_states(checkpoint, reason):
    inner = ScriptedSaver(MemorySaver())
    saver = ValidatingSaver(inner)
    with pytest.raises(CheckpointerConfigurationError, match=reason) as caught:
        saver.put(None, checkpoint)
    assert isinstance(caught.value, ValueError)
    with pytest.raises(ValueError, match=reason):
        asyncio.run(saver.aput(None, checkpoint))
    assert inner.count("put") == 0
    saver.put(None, made({"n": 1}))
    assert saver.get().state == {"n": 1}


def test_a_wrapper_that_changes_what_is_listed_does_not_replay_the_delegate():
    class Hiding(SaverWrapper):
        def list(self, config=None):
            return []

    assert isinstance(SaverWrapper(Capable()), SupportsReplay)
    assert not isinstance(Hiding(Capable()), SupportsReplay)
