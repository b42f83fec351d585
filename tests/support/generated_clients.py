"""Clients of the admin API that generators of others make from its description: openapi-python-client, openapi-typescript.

All that they need is pinned with hashes beside this file, and fetched by uv and npm; without them the test is skipped. This file
is also the program that the generated client of Python runs: it has only the standard library there, and what is generated.
"""

import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PINS = HERE / "openapi_python_client.txt"
TYPESCRIPT = HERE / "typescript_client"
WAIT_S = 300.0
DRIVEN = {"assigned": "owned", "moved": "transferred", "split": "done", "released": True, "digest": 64, "would": 1}
DRIVEN |= {"reason": "unknown-namespace"}
"""What a driver prints."""


def python_client(description: Path, folder: Path) -> list[str]:
    """The command of a client in Python, to which the URL is added; the test is skipped without its generator."""
    tool = folder / "tool"
    uv = [sys.executable, "-m", "uv"]
    _fetch([*uv, "venv", "--quiet", "--python", sys.executable, str(tool)], folder)
    python = str(tool / "bin" / "python")
    _fetch([*uv, "pip", "install", "--quiet", "--require-hashes", "--python", python, "-r", str(PINS)], folder)
    options = ("--meta", "none", "--fail-on-warning", "--path", str(description), "--output-path", "admin_client")
    path = os.pathsep.join([str(tool / "bin"), os.environ["PATH"]])  # it formats with ruff
    _run([python, "-m", "openapi_python_client", "generate", *options], folder, PATH=path)
    return [python, str(Path(__file__).resolve())]


def typescript_client(description: Path, folder: Path) -> list[str]:
    """The same in TypeScript, which is compiled: its types are those of the description."""
    own = folder / "typescript"
    shutil.copytree(TYPESCRIPT, own)
    _fetch(["npm", "ci", "--silent", "--no-audit", "--no-fund"], own)
    # What has a default may be left out.
    _run(["npx", "openapi-typescript", str(description), "--default-non-nullable=false", "-o", "schema.d.ts"], own)
    _run(["npx", "tsc", "-p", "."], own)
    return ["node", str(own / "out" / "drive.js")]


def driven(command: list[str], url: str, folder: Path) -> Any:
    """What the client prints of its calls."""
    return json.loads(_run([*command, url], folder))


def _fetch(command: list[str], folder: Path) -> None:
    import pytest  # noqa: PLC0415 - the generated client has none

    try:
        _run(command, folder)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"a generator of clients cannot be fetched: {error}")


def _run(command: list[str], folder: Path, **more: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | more
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, timeout=WAIT_S, check=False
    )
    if done.returncode != 0:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout)
    return done.stdout


def _until(look: Callable[[], Any]) -> Any:
    while not (answer := look()):
        time.sleep(0.2)
    return answer


def main(url: str) -> None:
    """Drive the API by the generated code; a key that this does not name would be left over."""
    sys.path.insert(0, str(Path.cwd()))
    models: Any = importlib.import_module("admin_client.models")
    made_client = importlib.import_module("admin_client").Client
    client = made_client(base_url=url, headers={"Statechannel-Client": "python"}, raise_on_unexpected_status=True)

    def call(name: str, /, *parts: str, **asked: Any) -> Any:
        answer = importlib.import_module(f"admin_client.api.{name}").sync(*parts, client=client, **asked)
        if not isinstance(answer, models.Problem) and answer.additional_properties:
            raise ValueError(f"{name} does not name {answer.additional_properties}")
        return answer

    call("namespaces.create_namespace", body=models.NamespaceBody("py/n", bundles=2), prefer="wait=60")
    listed = _until(lambda: getattr(call("bundles.list_bundles", namespace="py/n"), "bundles", ())[1:])
    bundle = listed[0].bundle
    parts = bundle.split("/")
    assigned = call("lookup.assign", body=models.LookupBody(bundle), prefer="wait=60")
    _until(lambda: call("lookup.lookup", name=bundle).outcome == models.LookupDocumentOutcome.OWNED)
    if [row.owner for row in call("bundles.list_bundles", state=models.State.ASSIGNED).bundles] != [assigned.broker]:
        raise ValueError("another owner")
    alive = [row.broker for row in call("brokers.list_brokers").brokers if row.state == models.BrokerRowState.ALIVE]
    to = models.TransferBody(destination=next(name for name in alive if name != assigned.broker))
    begun = call("bundles.transfer", *parts, body=to, idempotency_key="py-1")
    moved = call("operations.show_operation", begun.operation, prefer="wait=60")
    split = call("bundles.split", *parts, body=models.SplitBody(parts=2), prefer="wait=60")
    history = call("audit.audit_history", name=bundle).history
    accepted = [row for row in history if row.verdict == models.Verdict.ACCEPTED and row.before]
    audit = call("audit.audit")
    for name, asked in (
        ("audit_gaps", {}),
        ("audit_diff", {"earlier": "1"}),
        ("audit_owner", {"name": bundle, "as_of": "3"}),
    ):
        call(f"audit.{name}", **asked)
    tried = call("namespaces.delete_namespace", *parts[:2], dry_run=True)
    refused = call("namespaces.show_namespace", "py", "none")
    answer = {
        "assigned": assigned.outcome.value, "moved": moved.result, "split": split.outcome.value,
        "released": any(row.before.owner == assigned.broker for row in accepted), "digest": len(audit.digest),
        "would": len(tried.would), "reason": refused.reason,
    }  # fmt: skip
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1])
