"""The page of the cluster: what it shows is computed here without I/O, sent to all pages at once, and drawn by its assets."""
