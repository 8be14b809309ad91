"""The command line: what reads argv, the environment and the terminal. The extra `cli` brings what it needs."""
