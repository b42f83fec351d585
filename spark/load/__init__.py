"""The job `load-views`: load reports as views and as a history."""
