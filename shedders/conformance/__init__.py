"""What every strategy has to keep: `statechannel strategy check NAME`, or `conform` in a test."""
