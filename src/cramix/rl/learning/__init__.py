"""How agents learn: Bellman targets, the loss and its gradient, steps of the optimiser."""
