"""The audit log: entries in a chain, in the files of one directory; and what verify and list make of them."""
