"""Views of the load topics: newest reports, their ages, and their expiry. Pure."""
