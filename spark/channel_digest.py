"""What a published snapshot holds, read back from where it was written: its digest, and how much it is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset as ds

from spark.store import Folder
from statechannel.core.digest import digest_of, line_of
from statechannel.core.states import State

_COLUMNS = ["key", "lower", "state", "version", "from", "to", "id", "owner", "debt_since"]


@dataclass(frozen=True, slots=True)
class Published:
    """Figures of a snapshot.

    Attributes:
        digest: Of all accepted states, as records.md section 8, has it.
        keys: With an accepted state. `bundles`: live ones. `namespaces`: Active ones.
        debts: Keys in debt.
    """

    digest: str
    keys: int
    bundles: int
    namespaces: int
    debts: int
    owners: dict[str, int]

    def fields(self) -> dict[str, Any]:
        """As the pointer has them."""
        return {
            "digest": self.digest,
            "keys": self.keys,
            "bundles": self.bundles,
            "namespaces": self.namespaces,
            "debts": self.debts,
        }


def published(uri: str) -> Published:
    """Read a snapshot."""
    folder = Folder(uri)
    table = ds.dataset(folder.path, filesystem=folder.files, format="parquet").to_table(columns=_COLUMNS)
    debts = table.num_rows - table.column("debt_since").null_count
    table = table.filter(pc.is_valid(table.column("state"))).sort_by("key")
    columns = [table.column(name).to_pylist() for name in ("key", "version", "state", "from", "to", "id")]
    is_bundle = pc.greater_equal(table.column("lower"), 0)
    is_deleted = pc.equal(table.column("state"), State.DELETED.value)
    live = pc.and_(is_bundle, pc.invert(is_deleted))
    owners = Counter(owner for owner in table.filter(live).column("owner").to_pylist() if owner is not None)
    active = pc.and_(pc.invert(is_bundle), pc.equal(table.column("state"), State.ACTIVE.value))
    return Published(
        digest=digest_of(line_of(*fields) for fields in zip(*columns, strict=True)),
        keys=table.num_rows,
        bundles=int(pc.sum(live).as_py() or 0),
        namespaces=int(pc.sum(active).as_py() or 0),
        debts=debts,
        owners=dict(owners),
    )
