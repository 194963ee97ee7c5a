"""The energy distance of multivariate mixtures, `E|X - Y| - 1/2 E|X - X'| - 1/2 E|Y - Y'|` (docs/math.md, eq. 24).

It is the sliced Cramér distance without slices, up to a factor. One signature (`signature`) and a ladder of
implementations:

- `reference`: all pairs, by the plainest quadrature of the mean length of a normal vector, for tests;
- `blocked`: blocks of pairs in torch, with one quadrature rule for all of them;
- `small`: the same on NumPy arrays, for problems so small that the time goes into calls;
- `triton`: GPU kernels, in one pass and without a word to the host; `triton_axes`, `triton_rule`,
  `triton_pairs`, `triton_points`, `triton_lanes` and `triton_derivatives` are its parts;
- `transforms`: one custom operator around it, for torch.compile and function transforms.

`ladder` chooses one, and `autograd` makes it differentiable. The rest are parts of `blocked`: `flat_mixtures`
(operands), `nodes` (the rule), `pair_norm` and `mean_norm` (mean lengths), `component_pairs`, `point_pairs` and
`self_energy` (sums).
"""
