"""The measurements of the documentation, each as a ratio against a floor of the same run: `python -m tests.bench`."""
