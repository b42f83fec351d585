"""Who may call the admin API: bearer tokens, client certificates of a file, and the host names by which it may be called."""

from __future__ import annotations

import hashlib
import re
import secrets
import socket
import stat
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from statechannel.errors import ExitCode, StateChannelError
from statechannel.files import UnreadableFileError, read_text
from statechannel.http_api.problems import ProblemError
from statechannel.http_api.routes import Caller
from statechannel.http_client import is_loopback, is_private_url
from statechannel.logger import SafeLogger
from statechannel.settings.groups_cluster import AccessRole

if TYPE_CHECKING:
    from statechannel.http_api.oidc import OidcCallers
    from statechannel.settings.groups_cluster import HttpSettings

_log = SafeLogger(__name__)

CLIENT_HEADER: Final = "statechannel-client"
"""How callers name themselves where there is no authentication; no page of another site can send it."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}", re.ASCII)
_TOKEN: Final = re.compile(r"sha256:([0-9a-f]{64})", re.ASCII)
_CERT: Final = re.compile(r"cert:(.{1,128})")
_COMMENT: Final = re.compile(r"(?:^|\s)#")  # within a word it belongs to the name of a certificate
_FILE_MAX_BYTES: Final = 1_000_000
_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_UNNAMED: Final = "unnamed"
_DOTS_OF_JWT: Final = 2


class HttpAccessError(StateChannelError):
    """The admin API would be open to others than it should, or its file of callers cannot be used."""

    exit_code = ExitCode.BAD_SETTINGS


class Credentials(NamedTuple):
    """The content of a file: name and role by the digest of a token, and by the common name of a certificate."""

    tokens: Mapping[str, tuple[str, AccessRole]]
    certificates: Mapping[str, tuple[str, AccessRole]]


def is_caller_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def new_token() -> tuple[str, str]:
    """A new token, and its digest as the file has it."""
    token = secrets.token_urlsafe(32)
    return token, f"sha256:{digest_of(token)}"


def digest_of(token: str) -> str:
    # No slow hash: a token has 256 random bits, which no list of passwords holds.
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def read_credentials(path: Path) -> Credentials:
    """The callers of a file.

    Raises:
        HttpAccessError: It cannot be read, others may write it, or a line is malformed.
    """
    try:
        status = path.stat()
        text = read_text(path, _FILE_MAX_BYTES)
    except (OSError, UnreadableFileError) as error:
        why = f"cannot be read: {error}" if isinstance(error, OSError) else error
        raise HttpAccessError(f"{path} {why}", hint="Set http.access_file to a readable text file.") from error
    if status.st_mode & stat.S_IWOTH:
        raise HttpAccessError(f"{path} may be written by everybody", hint=f"`chmod o-w {path}`.")
    tokens: dict[str, tuple[str, AccessRole]] = {}
    certificates: dict[str, tuple[str, AccessRole]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = _COMMENT.split(line, maxsplit=1)[0].split(maxsplit=2)
        if not words:
            continue
        name, role, credential = (*words, "", "")[:3]
        credential = credential.strip()
        token, certificate = _TOKEN.fullmatch(credential), _CERT.fullmatch(credential)
        if _NAME.fullmatch(name) is None or role not in list(AccessRole) or (token is None and certificate is None):
            raise HttpAccessError(
                f"line {number} of {path} is not `NAME ROLE sha256:HEX` or `NAME ROLE cert:COMMON-NAME`",
                hint=f"ROLE is one of {', '.join(AccessRole)}; `statechannel console --new-token NAME` prints a line.",
            )
        if token is not None:
            tokens[token[1]] = name, AccessRole(role)
        elif certificate is not None:
            certificates[certificate[1]] = name, AccessRole(role)
    return Credentials(tokens, certificates)


def trusted_proxies(settings: HttpSettings) -> list[str]:
    """Networks whose `X-Forwarded-For` counts; those of IPv4 also as a socket for both versions has their addresses.

    Raises:
        HttpAccessError: `http.trusted_proxies` has neither an address nor a network.
    """
    try:
        networks = [ip_network(text) for text in settings.trusted_proxies]
    except ValueError as error:
        raise HttpAccessError(
            f"http.trusted_proxies: {error}", hint="Use addresses, or networks as 10.0.0.0/8."
        ) from error
    mapped = [f"::ffff:{net.network_address}/{96 + net.prefixlen}" for net in networks if net.version == 4]  # noqa: PLR2004
    return [*map(str, networks), *mapped]


def _oidc_callers(settings: HttpSettings, issuer: str) -> OidcCallers:
    from statechannel.http_api.oidc import OidcCallers  # noqa: PLC0415 - the extra

    if settings.oidc_audience is None:
        raise HttpAccessError(
            "http.oidc_issuer is set without http.oidc_audience",
            hint="Set the audience that tokens for this API have; else any token of the issuer would be one.",
        )
    if not is_private_url(issuer):
        raise HttpAccessError("http.oidc_issuer is reached without TLS: its keys could be replaced", hint="Use https.")
    try:
        return OidcCallers(settings, issuer, settings.oidc_audience)
    except OSError as error:
        raise HttpAccessError(
            f"http.oidc_ca cannot be used: {error}", hint="Name a file of certificates (PEM)."
        ) from None


class HttpCallers:
    """Authenticates callers, and checks the host names and origins of requests.

    Raises:
        HttpAccessError: The settings would open the port to a network without authentication, or the file is invalid.
    """

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        trusted_proxies(settings)
        self._read_at: tuple[int, int, int] | None = None
        self._credentials = Credentials({}, {})
        self._oidc: OidcCallers | None = None
        if settings.oidc_issuer is not None:
            self._oidc = _oidc_callers(settings, settings.oidc_issuer)
        if settings.access_file is not None:
            self._read_at = _version(settings.access_file)
            self._credentials = read_credentials(settings.access_file)
        elif self._oidc is None and not is_loopback(settings.address):
            raise HttpAccessError(
                f"http.address is {settings.address}, which others than this machine reach, and there is no authentication",
                hint="Set http.access_file or http.oidc_issuer, or keep http.address at 127.0.0.1.",
            )
        if settings.tls_client_ca is not None and (settings.tls_certificate is None or settings.tls_key is None):
            raise HttpAccessError(
                "http.tls_client_ca is set without http.tls_certificate and http.tls_key",
                hint="Set all three, or none.",
            )
        if (settings.tls_certificate is None) != (settings.tls_key is None):
            raise HttpAccessError("http.tls_certificate and http.tls_key go together", hint="Set both, or neither.")
        own = [settings.address] if not _is_wildcard(settings.address) else []
        advertised = urlsplit(settings.advertised_url or "").hostname
        own += [] if advertised is None else [advertised]
        self._hosts = _LOCAL | {name.lower() for name in (*own, socket.gethostname(), *settings.hosts)}

    def _newest(self) -> Credentials:
        """The file's content, read again where it has changed; one that cannot be used leaves the last in force."""
        path = self._settings.access_file
        if path is None:
            return self._credentials
        version = _version(path)
        if version != self._read_at:
            self._read_at = version
            try:
                self._credentials = read_credentials(path)
            except HttpAccessError as error:
                _log.warning("http-access-file-unusable", file=str(path), why=str(error))
            else:
                _log.info("http-access-file-read", file=str(path))
        return self._credentials

    def require_host(self, host: str, server: str = "") -> None:
        """Refuse a request by a name that is not this machine's: a foreign page may have its own name resolve to here.

        Args:
            server: Address of this machine at which the connection has arrived.

        Raises:
            ProblemError: `bad-host`.
        """
        name = host.lower()
        if name.startswith("["):
            name = name[1:].partition("]")[0]
        elif name.count(":") == 1:
            name = name.partition(":")[0]
        if name not in self._hosts and (not server or name != server.lower()):
            raise ProblemError("bad-host", f"{host[:100]!r} is not a name of this host" if host else "there is no Host")

    async def caller(self, headers: Mapping[str, str], certificate: str | None, address: str) -> Caller:
        """Authenticate a request.

        Args:
            headers: By lower-case name.
            certificate: Common name of the certificate that the client has presented, if any.

        Raises:
            ProblemError: `token-missing`, or as `OidcCallers.caller`.
        """
        if self._settings.access_file is None and self._oidc is None:
            name = headers.get(CLIENT_HEADER, "")
            return Caller(name if _NAME.fullmatch(name) else _UNNAMED, self._settings.open_role, address)
        credentials = self._newest()
        scheme, _, token = headers.get("authorization", "").partition(" ")
        known = None
        if scheme.lower() == "bearer":
            known = credentials.tokens.get(digest_of(token.strip()))
            if known is None and self._oidc is not None and token.count(".") == _DOTS_OF_JWT:
                caller = await self._oidc.caller(token.strip(), address)
                if any(
                    caller.name == name
                    for name, _ in (*credentials.tokens.values(), *credentials.certificates.values())
                ):
                    raise ProblemError(
                        "token-invalid", f"{caller.name} is the name of another caller, in http.access_file"
                    )
                return caller
        elif certificate is not None:
            known = credentials.certificates.get(certificate)
        if known is None:
            raise ProblemError("token-missing", "the token is not known" if scheme else "there is no token")
        return Caller(*known, address)


def require_own_page(headers: Mapping[str, str]) -> None:
    """Refuse a change that a page of another site may have sent.

    Raises:
        ProblemError: `foreign-page`.
    """
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != headers.get("host", ""):
        raise ProblemError("foreign-page", f"it comes from a page of {origin[:100]!r}")
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise ProblemError("foreign-page", "it comes from a page of another site")
    if CLIENT_HEADER not in headers and not headers.get("authorization"):
        raise ProblemError("foreign-page", "there is neither a bearer token nor the header Statechannel-Client")


def _is_wildcard(address: str) -> bool:
    try:
        return ip_address(address).is_unspecified
    except ValueError:
        return False


def _version(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
