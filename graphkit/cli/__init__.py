"""The command line. Its dependencies come with the extra `cli`."""
