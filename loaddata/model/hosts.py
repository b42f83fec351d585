"""The host in an address."""

from __future__ import annotations

from urllib.parse import urlsplit


def host_of(address: str) -> str | None:
    """The host of a URL or of HOST:PORT, in lower case; IPv6 in brackets. None if the address has none."""
    if "/" not in address and "[" not in address and address.count(":") > 1 and "@" not in address:
        address = f"[{address}]"  # IPv6 alone
    try:
        host = urlsplit(address if "//" in address else f"//{address}").hostname
    except ValueError:  # half of an IPv6 address
        return None
    return f"[{host}]" if host and ":" in host else host or None
