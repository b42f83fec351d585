"""For operators: a Grafana dashboard (`dashboard.json`) and alert rules for Prometheus (`alerts.yaml`), as files."""
