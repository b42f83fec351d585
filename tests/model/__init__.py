"""The model in design/evidence/model: its commands run, and its rules are compared with what the code makes of real logs."""
