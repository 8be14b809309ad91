"""graphkit beside its peers; see README.md."""
