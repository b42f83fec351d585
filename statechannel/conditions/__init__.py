"""What is wrong now, as one table: `status`, `doctor` and the live page are views of it."""
