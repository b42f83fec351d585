"""Mutation testing: small changes of the product's functions, and whether any test notices (design/evidence/mutation.md)."""
