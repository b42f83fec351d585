"""Logs with what a reader has to make of them, for whoever writes another implementation (design/corpus.md)."""
