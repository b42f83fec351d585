"""Simulator of strategies on the same traces, in virtual time, on the real core (design/evidence/contest.md)."""
