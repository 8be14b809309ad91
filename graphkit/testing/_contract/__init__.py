"""The promises of savers, a module for each subject; `graphkit.testing.contract` puts them together."""
