"""Commands of the Spark jobs; the only place of this package that knows a command line."""
