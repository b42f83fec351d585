"""HTTP handler that refuses redirects."""

from __future__ import annotations

from urllib.request import HTTPRedirectHandler


class NoRedirect(HTTPRedirectHandler):
    """Contacts only the named server: its answer must not redirect the request into a private network."""

    def redirect_request(self, *_: object, **__: object) -> None:
        """Refuse; the response counts as the error of its status."""
        return
