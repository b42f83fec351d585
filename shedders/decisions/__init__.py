"""Decision records: how they are built, written, read back and explained."""
