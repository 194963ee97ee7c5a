"""The algorithms: what a network says about returns, and the distance it learns by."""
