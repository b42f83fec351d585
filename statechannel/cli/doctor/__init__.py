"""Command `statechannel doctor`: checks as data. Facts are gathered first, as far as possible; checks read facts only."""
