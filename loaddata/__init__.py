"""Load reports of brokers and bundles, and the views that placement reads."""
