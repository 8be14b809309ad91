"""What passes between a graph, its engine and a saver: configs, checkpoints, outputs, the node context."""
