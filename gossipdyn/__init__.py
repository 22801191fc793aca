"""Order-parameter dynamics of SGD and of gossip averaging between workers."""
