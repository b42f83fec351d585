"""What a reader holds of the load topics: newest reports, their ages, and when they expire. Pure."""
