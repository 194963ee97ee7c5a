"""The Cramér distance on the line, `C2^2(P, Q) = integral (F - G)^2 dx` (docs/math.md, eq. 4).

One signature (`signature`) and a ladder of implementations:

- `reference`: the formula as it reads, differentiable to any order; memory for all pairs;
- `blocked`: a blocked pass over the pairs in torch, for any size and device;
- `small`: NumPy, for so few pairs on the CPU that the time goes into calls;
- `compiled`: formulas that torch.compile fuses;
- `triton`: kernels for a GPU, in float32 with float64 for small losses.

`ladder` chooses one. `distance` has the public functions, `autograd` makes them differentiable, `atoms` handles sets of
points by sorting, and `cancellation` recomputes distances that are small against the scales of the mixtures.
"""
