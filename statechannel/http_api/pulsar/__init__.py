"""A part of Pulsar's admin and lookup paths, for its own clients (design/pulsar-paths.md): a translation of the routes here."""
