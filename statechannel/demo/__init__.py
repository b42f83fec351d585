"""Demo: three brokers with a toy data plane, a client that notices every gap, and an audit that explains them all."""
