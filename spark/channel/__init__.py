"""The job `table-view`: the channel's log as snapshots of accepted states."""
