"""Where exponentials underflow."""

from __future__ import annotations

import torch

# Beyond this exp(-x) underflows, where it takes up to 70 times as long; here it is as good as 0 there.
LARGEST_EXPONENT = {torch.float32: 86.0, torch.float64: 707.0}
