"""Files and values of people: read in one way. Files are created atomically: one gets its name only when it is complete."""

from __future__ import annotations

import codecs
import errno
import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import orjson

from statechannel.errors import ExitCode, StateChannelError


class FileUnwritableError(StateChannelError):
    """A file cannot be written; uses the exit code of export files."""

    def __init__(self, path: Path, error: OSError) -> None:
        if not os.path.isdir(path.parent):  # noqa: PTH112 - Path.is_dir fails of a name that is too long
            hint = f"The folder {path.parent} does not exist: create it, or choose another."
        elif error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = "Free space on the disk, or choose another one."
        else:
            hint = "Choose a file that you may write."
        super().__init__(f"{path} cannot be written: {error.strerror}.", hint=hint, exit_code=ExitCode.BAD_EXPORT)


class NotReplaceableError(StateChannelError):
    """A path names a device, a pipe or a socket, which a new file must not replace."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} is a device, a pipe or a socket, which a file would replace.",
            hint="Choose a file.",
            exit_code=ExitCode.USAGE,
        )


class StandardOutputError(StateChannelError):
    """`-` was given for a file."""

    def __init__(self) -> None:
        super().__init__(
            "`-` does not mean standard output here: a result replaces a file once it is whole.",
            hint="Give a file's name; a file of that name needs its folder: `$PWD/-`.",
            exit_code=ExitCode.USAGE,
        )


class UnreadableFileError(Exception):
    """A file cannot be read; the message goes on from its name: `is compressed with gzip: unpack it`."""


READ_BYTES_MAX: Final = 1 << 31
_OTHER: Final = {
    b"\x1f\x8b": "is compressed with gzip: unpack it",
    b"\x28\xb5\x2f\xfd": "is compressed with zstd: unpack it",
    b"\xfd7zXZ": "is compressed with xz: unpack it",
    b"PK\x03\x04": "is a zip archive: unpack it",
    codecs.BOM_UTF16_LE: "is UTF-16: save it as UTF-8",
    codecs.BOM_UTF16_BE: "is UTF-16: save it as UTF-8",
}


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that a person may have written, behind its byte order mark; every input in UTF-8 is read through this.

    Raises:
        UnreadableFileError: It cannot be read, or is a device, a folder, compressed or UTF-16.
    """
    try:
        mode = path.stat().st_mode
        is_device = not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode)  # which might never end
        if is_device and not path.samefile(os.devnull):
            raise UnreadableFileError("is not a file")
        source = path.open("rb")
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise UnreadableFileError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    with source as file:
        try:
            head = file.peek(len(codecs.BOM_UTF8))
            for mark, what in _OTHER.items():
                if head.startswith(mark):
                    raise UnreadableFileError(what)
            if head.startswith(codecs.BOM_UTF8):
                file.read(len(codecs.BOM_UTF8))
            yield file
        except (OSError, UnicodeDecodeError) as error:
            why = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror
            raise UnreadableFileError(f"cannot be read: {why}") from error


def read_bytes(path: Path, size_max_bytes: int = READ_BYTES_MAX) -> bytes:
    with opened(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size or size_max_bytes  # a pipe has none
        raw = b"" if size_bytes > size_max_bytes else file.read(size_bytes + 1)
    if max(size_bytes, len(raw)) > size_max_bytes:
        raise UnreadableFileError(f"has more than {size_max_bytes} bytes, which is too much to read")
    return raw


def read_text(path: Path, size_max_bytes: int = READ_BYTES_MAX) -> str:
    """The same as text."""
    raw = read_bytes(path, size_max_bytes)
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UnreadableFileError(f"is not UTF-8: line {line} has the byte 0x{raw[error.start]:02x}") from error


def load_json(raw: bytes, spelling: int = 0) -> Any:
    """JSON in which no object has a name twice; with the `spelling` (orjson's options) of its writer it needs no second look.

    Raises:
        ValueError: It is not; `orjson.JSONDecodeError` where it is no JSON at all.
    """
    value = orjson.loads(raw)
    try:
        is_own = orjson.dumps(value, option=spelling) == raw
    except TypeError:
        is_own = False  # nested too deeply for it
    if not is_own:
        check_names(raw)
    return value


def check_names(raw: bytes) -> None:
    """Raise ValueError where an object of JSON has a name twice: some readers take its first value, others its last."""

    def unique(pairs: list[tuple[str, Any]]) -> None:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            raise ValueError(f"the name {max(names, key=names.count)[:40]!r} is there twice")

    try:
        json.loads(raw, object_pairs_hook=unique)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_value(text: str) -> Any:
    """Value of an option or a variable: `none` is None, lists and mappings are JSON; text stays text, also of numbers."""
    stripped = text.strip()
    if stripped.lower() == "none":
        return None
    if stripped[:1] in ("[", "{"):
        try:
            return load_json(stripped.encode())
        except ValueError:
            return text
    return text


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a scratch file that replaces the target on success; a symbolic link stays, and its target is replaced.

    Raises:
        NotReplaceableError: The path is a device, a pipe or a socket.
        FileUnwritableError: It cannot be written.
    """
    try:
        target = _target(path)
        scratch = _scratch_of(target)
        file = scratch.open("xb")
    except OSError as error:
        raise FileUnwritableError(path, error) from error
    try:
        with file:
            yield file
        scratch.replace(target)
    except OSError as error:
        raise FileUnwritableError(path, error) from error
    finally:
        scratch.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Check early, before a long operation, that the file can be written; leaves an existing one unchanged.

    Raises:
        NotReplaceableError: See `new_file`.
        FileUnwritableError: See `new_file`.
    """
    try:
        scratch = _scratch_of(_target(path))
        scratch.touch(exist_ok=False)
        scratch.unlink()
    except OSError as error:
        raise FileUnwritableError(path, error) from error


def _scratch_of(target: Path) -> Path:
    # Two that write the same file do not disturb each other: the last one to end has it.
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")


def _target(path: Path) -> Path:
    if str(path) == "-":
        raise StandardOutputError
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if target.exists() and not target.is_file():
        raise NotReplaceableError(path)
    return target
