"""The campaign's side of the storage: its process, from the start of a run to the reading of its journal."""

import os
import subprocess
import sys
from pathlib import Path

from tests.faults.brokers import ROOT
from tests.faults.registers import Noted, read_journal
from tests.support.data_plane import LOOPBACK, PROTOCOL
from tests.support.plane_client import PlaneLink

ANSWER_S = 20.0


class StorageProcess:
    """Runs from `start` to `close`; no fault touches it."""

    def __init__(self, folder: Path) -> None:
        self._journal = folder / "storage.jsonl"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        with (self._folder / "storage.log").open("wb") as err:
            process = self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.storage", str(self._journal)],
                env=environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=err,
                start_new_session=True,
            )
        port = process.stdout.readline()
        self.url = f"{PROTOCOL}://{LOOPBACK}:{int(port)}"

    async def journal(self) -> list[Noted]:
        """Everything that arrived so far; for when nobody writes any more."""
        link = PlaneLink(self.url)
        await link.ask("flush", ANSWER_S)
        await link.close()
        return read_journal(self._journal)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(20)
