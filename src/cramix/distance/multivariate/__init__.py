"""The inside of the multivariate distance without slices: mean lengths of normal vectors, with their gradients."""
