"""Names and ring arithmetic: keys of the channel, hash ranges, and the bundle of a topic.

Source: Pulsar's `NamespaceBundleFactory` and `NamespaceBundles` (boundaries, CRC-32 of the full topic name) and
protocol.md section 2 (keys, partitions).
"""

from __future__ import annotations

import re
import sys
from array import array
from functools import lru_cache
from itertools import pairwise
from operator import lt
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FULL_LOWER: Final = 0x00000000
FULL_UPPER: Final = 0xFFFFFFFF
MAX_CHILDREN: Final = 32_768

DOTS: Final = frozenset({".", ".."})
_NAME: Final = r"[A-Za-z0-9_=:.\-]{1,128}"
_RANGE: Final = r"0x([0-9a-f]{8})_0x([0-9a-f]{8})"
_NAMESPACE: Final = re.compile(rf"({_NAME})/({_NAME})", re.ASCII)
_BUNDLE: Final = re.compile(rf"({_NAME}/{_NAME})/({_RANGE})", re.ASCII)
_LIKE_BUNDLE: Final = re.compile(rf"{_NAME}/{_NAME}/0x[^/]*_0x[^/]*", re.ASCII)
_SHORT_TOPIC: Final = re.compile(rf"{_NAME}/{_NAME}/(.{{1,64}})", re.ASCII)
_DIGITS: Final = "[0-9a-foil]*"  # with the letters that are taken for digits
_LIKE_BOUNDS: Final = re.compile(
    rf"[\W_]*(?:{_DIGITS}[\W_]*0x{_DIGITS}(?:[\W_]*(?:0?x)?{_DIGITS})?"  # one bound at least begins as one should
    r"|0x.*[\W_]0?x.*"
    r"|(?:[0o]?x)?[0-9a-f]{6,10}[\W_]+(?:[0o]?x)?[0-9a-f]{6,10}"
    r"|[0o]?x[0-9a-f]{6,10}|[0-9a-f]{8}|[0-9a-f]{16})[\W_]*",
    re.ASCII,
)
_RANGES: Final = re.compile(r"(?:0x[0-9a-f]{8}_0x[0-9a-f]{8})*", re.ASCII)
_RANGE_LENGTH: Final = len("0x00000000_0x00000000")
_FEWEST_BOUNDS: Final = 2
_SWAPPED: Final = sys.byteorder == "little"
_KEY: Final = re.compile(rf"({_NAME}/{_NAME})(?:/({_RANGE}))?".encode(), re.ASCII)
_TOPIC: Final = re.compile(rf"(?:(persistent|non-persistent)://)?({_NAME}/{_NAME})/(.+)", re.ASCII)


class KeyParts(NamedTuple):
    """The parts of a well-formed namespace key (`lower` is -1) or bundle key."""

    namespace: str
    lower: int
    upper: int

    @property
    def is_namespace(self) -> bool:
        return self.lower < 0

    def contains(self, place: int) -> bool:
        """Whether a bundle's range has this hash; the last bundle of the ring has its upper bound, too."""
        return self.lower <= place < self.upper or place == self.upper == FULL_UPPER


def parse_key(key: bytes) -> KeyParts | None:
    """Parse a key; None for a key of unknown form (control keys are handled elsewhere)."""
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    namespace, whole_range, lower, upper = match.groups()
    if whole_range is None:
        return KeyParts(namespace.decode(), -1, -1)
    return KeyParts(namespace.decode(), int(lower, 16), int(upper, 16))


def range_name(lower: int, upper: int) -> str:
    """Name of a hash range: `0xLLLLLLLL_0xUUUUUUUU`, lower-closed, upper-open except at the end of the ring."""
    return f"0x{lower:08x}_0x{upper:08x}"


def bundle_key(namespace: str, lower: int, upper: int) -> str:
    return f"{namespace}/0x{lower:08x}_0x{upper:08x}"


def is_namespace(text: str) -> bool:
    """Whether the text is a well-formed `tenant/namespace`."""
    return _NAMESPACE.fullmatch(text) is not None


def is_new_namespace(text: str) -> bool:
    """Whether a namespace of this name may be created.

    The log may hold names with a part `.` or `..`, and they are judged. New ones are refused: clients drop these parts from the
    path of a URL, and so would act on another name.
    """
    return is_namespace(text) and not DOTS.intersection(text.split("/"))


def is_bundle(text: str) -> bool:
    return _BUNDLE.fullmatch(text) is not None


def is_mistyped_bundle(text: str) -> bool:
    """Whether a name without a domain ends like a malformed range of a bundle: not meant as a topic."""
    return _LIKE_BUNDLE.fullmatch(text) is not None and not is_bundle(text)


def looks_like_bounds(text: str) -> bool:
    """Whether a name without a domain ends like hexadecimal bounds, however they are typed, but is not the key of a bundle.

    Whatever changes something refuses it: as the name of a topic it would mean another bundle. It may be a topic's name.
    """
    topic = _SHORT_TOPIC.fullmatch(text)
    return topic is not None and not is_bundle(text) and _LIKE_BOUNDS.fullmatch(topic.group(1).lower()) is not None


def split_topic(topic: str) -> tuple[str, str] | None:
    """Namespace and full name of a topic, or None if it has no namespace, or a part `.` or `..` below it (`is_new_namespace`).

    `tenant/namespace/topic` means `persistent://tenant/namespace/topic`, as in Pulsar's `TopicName`.
    """
    match = _TOPIC.fullmatch(topic)
    if match is None:
        return None
    domain, namespace, local = match.groups()
    if not DOTS.isdisjoint(local.split("/")):
        return None
    return namespace, f"{domain or 'persistent'}://{namespace}/{local}"


def split_typed_topic(name: str) -> tuple[str, str] | None:
    """The same for user input: also None for `is_mistyped_bundle`; with its domain such a name is a topic."""
    return None if is_mistyped_bundle(name) else split_topic(name)


def topic_hash(full_name: str) -> int:
    """Place of a topic on the ring: zlib CRC-32 of the full name, as Pulsar's default `NamespaceBundleFactory`."""
    return crc32(full_name.encode())


def named_topic_hash(name: str) -> int:
    """Place on the ring of the topic that a caller names: `tenant/namespace/topic`, or its full name with the domain.

    Raises:
        ValueError: It is not the name of a topic.
    """
    topic = split_typed_topic(name)
    if topic is None:
        raise ValueError(
            f"`{name}` is not the name of a topic; wanted: tenant/namespace/topic, or persistent://... of it"
        )
    return topic_hash(topic[1])


class BundleRange(NamedTuple):
    """The hash range of a bundle: which topics are in it.

    Attributes:
        namespace: `tenant/namespace`.
        lower: First hash of the range.
        upper: End of the range, not part of it; the last range of the ring contains its end, 0xffffffff.
    """

    namespace: str
    lower: int
    upper: int

    @classmethod
    def parse(cls, key: str) -> BundleRange:
        """The range of a bundle's key, as hooks and lookups name it.

        Raises:
            ValueError: It is not the key of a bundle.
        """
        match = _BUNDLE.fullmatch(key)
        bundle = None if match is None else cls(match.group(1), int(match.group(3), 16), int(match.group(4), 16))
        if bundle is None or bundle.lower >= bundle.upper:
            raise ValueError(f"`{key}` is not the key of a bundle; wanted: tenant/namespace/0xLLLLLLLL_0xUUUUUUUU")
        return bundle

    @property
    def key(self) -> str:
        """Key of the bundle."""
        return bundle_key(self.namespace, self.lower, self.upper)

    def contains(self, topic: str) -> bool:
        """Whether a topic is in this bundle.

        Raises:
            ValueError: It is not the name of a topic.
        """
        split = split_typed_topic(topic)
        return self.contains_hash(named_topic_hash(topic)) and split is not None and split[0] == self.namespace

    def contains_hash(self, place: int) -> bool:
        """Whether a place of the namespace's ring is in this bundle (see `topic_hash`)."""
        return self.lower <= place < self.upper or place == self.upper == FULL_UPPER

    def covers(self, other: BundleRange) -> bool:
        """Whether all of another bundle is in this one, as that of a child is in its parent."""
        return self.namespace == other.namespace and self.lower <= other.lower and other.upper <= self.upper


@lru_cache(maxsize=65_536)
def partition_of(namespace: str, partitions: int) -> int:
    return crc32(namespace.encode()) % partitions


def namespace_bounds(count: int) -> list[int]:
    """`count + 1` bounds of a new namespace: steps of `2^32 / count` rounded down, as Pulsar's `PoliciesUtil.getBundles`.

    Raises:
        ValueError: The count is out of bounds.
    """
    if not 1 <= count <= MAX_CHILDREN:
        raise ValueError(f"a namespace has 1 to {MAX_CHILDREN} bundles, not {count}")
    step = (1 << 32) // count
    return [*(step * index for index in range(count)), FULL_UPPER]


def even_bounds(count: int, lower: int, upper: int) -> list[int]:
    """`count + 1` bounds that divide a range evenly, as Pulsar's `range_equally_divide` (steps are rounded down).

    Raises:
        ValueError: The range is too small for the count, or the count is out of bounds.
    """
    if not 1 <= count <= MAX_CHILDREN:
        raise ValueError(f"a range is divided into 1 to {MAX_CHILDREN} parts, not {count}")
    step = (upper - lower) // count
    if step < 1:
        raise ValueError(f"{range_name(lower, upper)} is too small for {count} parts")
    return [*(lower + index * step for index in range(count)), upper]


def bounds_at(lower: int, upper: int, positions: Iterable[int]) -> list[int]:
    """Bounds of the parts of a range that is cut at the given hashes.

    Raises:
        ValueError: A position is outside the range, on its edge, or duplicated; or there is none.
    """
    cuts = sorted(positions)
    if not cuts:
        raise ValueError("a split needs at least one position")
    for before, cut in pairwise([lower, *cuts]):
        if not before < cut < upper:
            raise ValueError(f"split positions must lie inside {range_name(lower, upper)}, each once: 0x{cut:08x}")
    return [lower, *cuts, upper]


def numbers_of(children: Sequence[str]) -> array[int] | None:
    """Lower and upper bound of each range string, one after the other; None if one of them is malformed.

    Vectorized: 32,768 children, parsed one by one, would block the loop for too long.
    """
    try:
        text = "".join(children)
    except TypeError:
        return None
    if any(map(_RANGE_LENGTH.__ne__, map(len, children))) or _RANGES.fullmatch(text) is None:
        return None
    numbers = array("I", bytes.fromhex(text.replace("0x", "").replace("_", "")))
    if _SWAPPED:
        numbers.byteswap()
    return numbers


def joined_bounds(numbers: array[int]) -> array[int] | None:
    """Bounds of contiguous, non-empty ranges in order, from the result of `numbers_of`; None if they are not."""
    lower, upper = numbers[0::2], numbers[1::2]
    if not numbers or lower[1:] != upper[:-1] or not all(map(lt, lower, upper)):
        return None
    return lower + upper[-1:]


def bounds_of(children: Sequence[str]) -> array[int] | None:
    """Bounds of contiguous, non-empty child ranges in order; None if they are not."""
    numbers = numbers_of(children)
    return None if numbers is None else joined_bounds(numbers)


def children_of(bounds: Sequence[int]) -> list[str]:
    """Range names between neighbouring bounds."""
    try:
        words = array("I", bounds)
    except OverflowError:  # undecodable children are written all the same, and rejected when read back
        return [range_name(lower, upper) for lower, upper in pairwise(bounds)]
    if len(words) < _FEWEST_BOUNDS:
        return []
    if _SWAPPED:
        words.byteswap()
    return [f"0x{lower}_0x{upper}" for lower, upper in pairwise(words.tobytes().hex(" ", 4).split(" "))]
