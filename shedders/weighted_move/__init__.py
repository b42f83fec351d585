"""The default strategy, `weighted-move`. Pure."""
