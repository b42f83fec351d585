"""`statechannel doctor`: checks as data. Facts are gathered first, as far as that goes; a check only looks at facts."""
