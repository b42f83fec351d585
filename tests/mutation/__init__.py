"""Mutation testing of the core: small changes of its functions, and whether any test notices (design/mutation.md)."""
