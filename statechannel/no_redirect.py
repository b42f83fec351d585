"""HTTP without redirects."""

from __future__ import annotations

from urllib.request import HTTPRedirectHandler


class NoRedirect(HTTPRedirectHandler):
    """Only the server that was named is asked: its answer must not send the question elsewhere, into a private network."""

    def redirect_request(self, *_: object, **__: object) -> None:
        """Refuse; the answer counts as the error that its status says."""
        return
