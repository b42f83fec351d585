"""Verdicts on records, in the order of the checks: the first that applies is the verdict."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """Verdict of every caught-up reader on a record (protocol.md section 3)."""

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
    Verdict.UNSUPPORTED_FORMAT: "has a newer format: judging of this partition stops here",
    Verdict.WRONG_PARTITION: "its namespace belongs in another partition",
    Verdict.PURGED: "the tombstone of a key that does not exist",
    Verdict.UNDECODABLE: "not a record of the channel",
    Verdict.ASSERT_EQUAL: "restates the accepted state",
    Verdict.ASSERT_STALE: "restates an outdated state, or one that was never accepted",
    Verdict.DUPLICATE: "a copy of the accepted record",
    Verdict.UNKNOWN_BUNDLE: "this bundle is not in the ring of an existing namespace",
    Verdict.STALE_VERSION: "another change was first",
    Verdict.VERSION_GAP: "the version is ahead of the accepted one by more than one",
    Verdict.WRONG_BASE: "not based on the accepted record",
    Verdict.ILLEGAL_MOVE: "this move is not allowed from the accepted state",
    Verdict.WRONG_BROKER: "the brokers do not match the accepted state",
    Verdict.BAD_CHILDREN: "the children do not cover their parent exactly once",
    Verdict.NAMESPACE_IN_USE: "a live bundle of the namespace is not Unassigned",
    Verdict.ACCEPTED: "accepted",
}
"""Explanation of each verdict."""
