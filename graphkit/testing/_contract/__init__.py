"""The tests of the saver contract, one module for each subject. `graphkit.testing.contract` combines them."""
