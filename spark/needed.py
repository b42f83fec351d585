"""Which rows of a view have to be there so that some records can be judged. Pure.

A record on a bundle is judged by its own key and its namespace, and changes nothing else but the children of a split, which no
living key can be: they are new, or only remembered. Only a record on the namespace itself looks at all of its bundles.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from statechannel.core.bundle import bundle_key, parse_key
from statechannel.core.view_rows import KeyRow

KEYS_MAX = 5_000
"""More keys than that are not told apart: all rows of the partition are taken."""


class Needed(NamedTuple):
    """Rows of one partition.

    Attributes:
        everything: All of them.
        namespaces: Those of which all rows are needed.
        keys: Bundles that are needed. `of`: their namespaces, with all keys in them that are only remembered.
    """

    everything: bool = False
    namespaces: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()
    of: frozenset[str] = frozenset()

    def holds(self, row: KeyRow) -> bool:
        """Whether this row is needed."""
        if self.everything or row.namespace in self.namespaces:
            return True
        return row.namespace in self.of and (row.lower < 0 or row.state is None or row.key in self.keys)

    def condition(self, partition: int) -> str:
        """The same in SQL; a key of a known form has no letter that SQL would understand."""
        here = f"partition = {partition}"
        if self.everything:
            return f"({here})"
        rows = []
        if self.namespaces:
            rows.append(f"namespace in ({_listed(self.namespaces)})")
        if self.of:
            rows.append(
                f"(namespace in ({_listed(self.of)}) and (lower < 0 or state is null or key in ({_listed(self.keys)})))"
            )
        return f"({here} and ({' or '.join(rows) or 'false'}))"


EVERYTHING = Needed(everything=True)


def needed_for(keys: Iterable[bytes] | None) -> Needed:
    """The rows that records on these keys need; None: nobody knows which."""
    if keys is None:
        return EVERYTHING
    known = [parts for key in keys if (parts := parse_key(key)) is not None]
    namespaces = frozenset(parts.namespace for parts in known if parts.is_namespace)
    bundles = [parts for parts in known if not parts.is_namespace and parts.namespace not in namespaces]
    return Needed(
        namespaces=namespaces,
        keys=frozenset(bundle_key(*parts) for parts in bundles),
        of=frozenset(parts.namespace for parts in bundles),
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))
