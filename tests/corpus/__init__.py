"""Logs with what a reader has to make of them, for authors of other implementations (design/evidence/corpus.md)."""
