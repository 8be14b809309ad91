"""The tests of the saver contract, one module per subject; `graphkit.testing.contract` combines them."""
