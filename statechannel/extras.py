"""How to install an extra of this package from where it came: a clone, a wheel, or an index."""

from __future__ import annotations

import json
import shlex
import sys
from importlib import metadata
from urllib.parse import urlsplit
from urllib.request import url2pathname


def install_command(extra: str) -> str:
    pip = f"{shlex.quote(sys.executable)} -m pip install"
    try:
        origin = json.loads(metadata.distribution("statechannel").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        origin = {}
    url = urlsplit(str(origin.get("url", "")))
    if url.scheme != "file":
        return f"{pip} 'statechannel[{extra}]'"
    editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return f"{pip} {editable}{shlex.quote(f'{url2pathname(url.path)}[{extra}]')}"
