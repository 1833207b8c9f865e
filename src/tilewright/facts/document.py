"""A Document: a subproblem of what is known of kernels, as it is found by words: a skeleton, a rule, a note or a
winner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DocumentKind = Literal["skeleton", "rule", "note", "winner", "realised", "lesson"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The tags say for what it holds; an empty one: for all of them. `operations` are words of our own ("product",
    "softmax"), dtypes those of facts.program."""

    kind: DocumentKind
    name: str  # unique among its kind: a file under kernels/, a rule's or a note's name, a winner's shape class, a key
    title: str
    text: str
    architectures: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A document that a search found, the best first. `score`: BM25, the larger the better; `excerpt`: where the words
    stand."""

    document: Document
    score: float
    excerpt: str
