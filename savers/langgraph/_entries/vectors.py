"""Vector search: embeds the texts of items, and ranks items by their vectors."""

from __future__ import annotations

import math
import operator
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from langgraph.store.base import ensure_embeddings, get_text_at_path, tokenize_path

from graphkit.errors import CheckpointerConfigurationError

if TYPE_CHECKING:
    from langgraph.store.base import IndexConfig, PutOp

Vectors = dict[str, Sequence[float]]
"""The vector of each path of an item."""


class Text(NamedTuple):
    """A text of an item that is embedded."""

    path: str
    text: str


class Embedder:
    """Embeds texts as the option `index` of a store says."""

    def __init__(self, config: IndexConfig) -> None:
        """Read the option.

        Raises:
            CheckpointerConfigurationError: it has no `embed`.
        """
        if config.get("embed") is None:
            raise CheckpointerConfigurationError('index needs "embed", a LangChain Embeddings object or a function')
        self.embeddings = ensure_embeddings(config["embed"])
        self.dims = config.get("dims")
        self._fields = list(config.get("fields") or ["$"])

    def find_texts(self, op: PutOp) -> list[Text]:
        """Return the texts of an item that are embedded."""
        if op.value is None or op.index is False:
            return []
        paths = self._fields if op.index is None else op.index
        texts: list[Text] = []
        for path in paths:
            tokens = path if path == "$" else tokenize_path(path)
            found = get_text_at_path(op.value, tokens)
            if len(found) == 1:
                texts.append(Text(path, found[0]))
                continue
            for number, text in enumerate(found):
                texts.append(Text(f"{path}.{number}", text))
        return texts

    def embed(self, texts: Iterable[str]) -> dict[str, Sequence[float]]:
        """Return the vector of each text of an item."""
        unique = list(dict.fromkeys(texts))
        if not unique:
            return {}
        return self._check(unique, self.embeddings.embed_documents(unique))

    async def aembed(self, texts: Iterable[str]) -> dict[str, Sequence[float]]:
        """As `embed`."""
        unique = list(dict.fromkeys(texts))
        if not unique:
            return {}
        return self._check(unique, await self.embeddings.aembed_documents(unique))

    def embed_queries(self, queries: Iterable[str]) -> dict[str, Sequence[float]]:
        """Return the vector of each query."""
        unique = list(dict.fromkeys(queries))
        return self._check(unique, [self.embeddings.embed_query(query) for query in unique])

    async def aembed_queries(self, queries: Iterable[str]) -> dict[str, Sequence[float]]:
        """As `embed_queries`."""
        unique = list(dict.fromkeys(queries))
        return self._check(unique, [await self.embeddings.aembed_query(query) for query in unique])

    def _check(self, texts: list[str], vectors: Sequence[Sequence[float]]) -> dict[str, Sequence[float]]:
        """Return the vector of each text.

        Raises:
            CheckpointerConfigurationError: there are fewer vectors than texts, or they do not have
                the dimensions that `index` names.
        """
        if len(vectors) != len(texts):
            reason = f"the embedding function returned {len(vectors)} vectors for {len(texts)} texts"
            raise CheckpointerConfigurationError(reason)
        dims = self.dims
        for vector in vectors:
            if dims is not None and len(vector) != dims:
                reason = f"the embedding function returned {len(vector)} dimensions; index has dims={dims}"
                raise CheckpointerConfigurationError(reason)
        return dict(zip(texts, vectors, strict=True))


def pack_vectors(vectors: Mapping[str, Sequence[float]]) -> tuple[list[tuple[str, int]] | None, bytes]:
    """Return path and dimensions of each vector, and the bytes of all."""
    about = [(path, len(vector)) for path, vector in vectors.items()]
    data = b"".join(_little_endian(array("f", vector)).tobytes() for vector in vectors.values())
    return about or None, data


def unpack_vectors(about: Sequence[tuple[str, int]] | None, data: bytes) -> Iterator[bytes]:
    """Yield the bytes of each vector."""
    start = 0
    for _, dims in about or ():
        yield data[start : start + 4 * dims]
        start += 4 * dims


def _little_endian(vector: array[float]) -> array[float]:
    if sys.byteorder == "big":
        vector.byteswap()
    return vector


def score_vectors(query: Sequence[float], vectors: Sequence[bytes]) -> list[float]:
    """Return the cosine similarity of a query to each vector.

    Uses numpy if it is installed, which takes a tenth of the time. float32, as the vectors are stored.

    Raises:
        CheckpointerConfigurationError: a vector has other dimensions than the query.
    """
    for vector in vectors:
        if len(vector) != 4 * len(query):
            raise CheckpointerConfigurationError(
                f"the query has {len(query)} dimensions, and a stored vector {len(vector) // 4}; put the items"
                " again that another embedding function has embedded"
            )
    if not vectors:
        return []
    if find_spec("numpy") is not None:
        return _score_with_numpy(query, vectors)
    query_norm = math.hypot(*query)
    return [_cosine(query, query_norm, vector) for vector in vectors]


def _score_with_numpy(query: Sequence[float], vectors: Sequence[bytes]) -> list[float]:
    np: Any = import_module("numpy")
    matrix = np.frombuffer(b"".join(vectors), dtype="<f4").reshape(len(vectors), len(query))
    wanted = np.asarray(query, dtype="f4")
    norms = np.linalg.norm(matrix, axis=1) * np.linalg.norm(wanted)
    scores: list[float] = np.divide(matrix @ wanted, norms, out=np.zeros(len(vectors)), where=norms != 0).tolist()
    return scores


def _cosine(query: Sequence[float], query_norm: float, vector: bytes) -> float:
    values = array("f")
    values.frombytes(vector)
    _little_endian(values)
    norm = math.hypot(*values) * query_norm
    if not norm:
        return 0.0
    product: float = sum(map(operator.mul, query, values))
    return product / norm
