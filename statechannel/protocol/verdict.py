"""Verdicts on records, in the order in which they are looked for: the first that applies is the verdict."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """What every caught-up reader says of a record (protocol.md section 3)."""

    CONTROL = "control"
    UNSUPPORTED_FORMAT = "unsupported-format"
    WRONG_PARTITION = "wrong-partition"
    PURGED = "purged"
    UNDECODABLE = "undecodable"
    ASSERT_EQUAL = "assert-equal"
    ASSERT_STALE = "assert-stale"
    DUPLICATE = "duplicate"
    UNKNOWN_BUNDLE = "unknown-bundle"
    STALE_VERSION = "stale-version"
    VERSION_GAP = "version-gap"
    WRONG_BASE = "wrong-base"
    ILLEGAL_MOVE = "illegal-move"
    WRONG_BROKER = "wrong-broker"
    BAD_CHILDREN = "bad-children"
    NAMESPACE_IN_USE = "namespace-in-use"
    ACCEPTED = "accepted"


REJECTIONS = (
    Verdict.UNSUPPORTED_FORMAT,
    Verdict.WRONG_PARTITION,
    Verdict.UNDECODABLE,
    Verdict.UNKNOWN_BUNDLE,
    Verdict.STALE_VERSION,
    Verdict.VERSION_GAP,
    Verdict.WRONG_BASE,
    Verdict.ILLEGAL_MOVE,
    Verdict.WRONG_BROKER,
    Verdict.BAD_CHILDREN,
    Verdict.NAMESPACE_IN_USE,
)
"""The verdicts that the audit counts as rejected."""

MEANING: dict[Verdict, str] = {
    Verdict.CONTROL: "a control key: not judged",
    Verdict.UNSUPPORTED_FORMAT: "written in a newer format: judging of this partition stops here",
    Verdict.WRONG_PARTITION: "its namespace belongs in another partition",
    Verdict.PURGED: "the null that takes away a key which does not exist",
    Verdict.UNDECODABLE: "not a record of the channel",
    Verdict.ASSERT_EQUAL: "restates what is accepted",
    Verdict.ASSERT_STALE: "restates something that is no longer, or never was, accepted",
    Verdict.DUPLICATE: "the accepted record once more",
    Verdict.UNKNOWN_BUNDLE: "no such bundle in the ring of a living namespace",
    Verdict.STALE_VERSION: "somebody else's change was first",
    Verdict.VERSION_GAP: "the version is ahead of the accepted one by more than one",
    Verdict.WRONG_BASE: "built on another record than the accepted one",
    Verdict.ILLEGAL_MOVE: "no such move from the accepted state",
    Verdict.WRONG_BROKER: "the brokers do not fit the accepted state",
    Verdict.BAD_CHILDREN: "the children do not cover their parent exactly once",
    Verdict.NAMESPACE_IN_USE: "a live bundle of the namespace is not Unassigned",
    Verdict.ACCEPTED: "accepted",
}
"""A sentence for people beside each verdict."""
