"""Full-text search over Documents: SQLite's FTS5 with BM25, in memory; a hundred are indexed in milliseconds."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable

from tilewright.facts.document import Document, Hit

# Words in a name, a title or the tags weigh more than those in the text.
_WEIGHTS = (4.0, 4.0, 3.0, 1.0)


class Index:
    """Documents, to be found by words. Words are stemmed; a document need not have all of them."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self._documents = tuple(documents)
        self._table = sqlite3.connect(":memory:")
        self._table.execute(
            "CREATE VIRTUAL TABLE page USING fts5(name, title, tags, text, tokenize='porter unicode61')"
        )
        rows = [
            (d.name, d.title, " ".join((*d.operations, *d.dtypes, *d.architectures)), d.text) for d in self._documents
        ]
        self._table.executemany("INSERT INTO page VALUES (?, ?, ?, ?)", rows)

    def search(self, words: str, *, architecture: str = "", dtype: str = "", most: int = 8) -> tuple[Hit, ...]:
        """The documents that hold the most of the words, the best first; of those that say for which architectures or
        dtypes they hold, only such as hold for these."""
        terms = re.findall(r"\w+", words)
        if not terms:
            return ()
        weights = ", ".join(map(str, _WEIGHTS))
        found = self._table.execute(
            f"SELECT rowid, -bm25(page, {weights}), snippet(page, 3, '', '', ' ... ', 24) FROM page WHERE page MATCH ? "
            f"ORDER BY bm25(page, {weights}), rowid",
            (" OR ".join(f'"{term}"' for term in terms),),
        )
        hits = (Hit(document=self._documents[row - 1], score=score, excerpt=text) for row, score, text in found)
        fitting = [
            h for h in hits if _holds(h.document.architectures, architecture) and _holds(h.document.dtypes, dtype)
        ]
        return tuple(fitting[:most])


def _holds(tags: tuple[str, ...], wanted: str) -> bool:
    return not wanted or not tags or wanted in tags
