"""What all jobs share: sessions, streams, tables on disk, locks and metrics."""
