"""The tests of the saver contract by subject; `graphkit.testing.contract` combines them."""
