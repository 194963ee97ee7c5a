"""The inside of the univariate Cramér distance: one pass over pairs of components, with its gradients."""
