"""The contract on two file systems of fsspec: one in memory, and one in a directory."""

from uuid import uuid4

import pytest

from graphkit.testing import SaverContract
from graphkit.testing.stateful import SaverMachine
from savers import ObjectStoreSaver
from tests.support.reopening import fewer


def new_memory_url():
    return f"memory://{uuid4().hex}/checkpoints"


class InObjects(SaverContract):
    def reopen(self, saver):
        return ObjectStoreSaver(saver.describe())


class TestInMemory(InObjects):
    def make_saver(self):
        return ObjectStoreSaver(new_memory_url())


class TestInDirectory(InObjects):
    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path):
        self.root = tmp_path

    def make_saver(self):
        return ObjectStoreSaver(f"file://{self.root}/{uuid4().hex}")


class ObjectsMachine(SaverMachine):
    def make_saver(self):
        return ObjectStoreSaver(new_memory_url())

    def reopen(self, saver):
        return ObjectStoreSaver(saver.describe())


TestObjectsMachine = fewer(ObjectsMachine, 8)
