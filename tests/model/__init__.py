"""The model in design/model: its commands run, and its rules are compared with what the code makes of real logs."""
