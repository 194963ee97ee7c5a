"""What kernels do in PTX, the assembly language of NVIDIA's GPUs, because the compiler of Triton does it worse."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def unrelated(values, COUNT: tl.constexpr, ASSEMBLY: tl.constexpr):
    """Return the values, as results of something that the compiler cannot look into.

    Otherwise it packs them into vectors, in several orders at once, and computes and keeps a copy for each.
    """
    if ASSEMBLY:
        found = ()
        for i in tl.static_range(COUNT):
            move = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [values[i]], tl.float32, is_pure=True, pack=1)
            found = found + (move,)
        return found
    else:
        return values


@triton.jit
def read_row(row, like, WIDTH: tl.constexpr, ASSEMBLY: tl.constexpr):
    """Return the numbers of a row of the table, the same in each lane.

    In PTX four are read at a time. Otherwise reading them would take about as long as computing with them.
    """
    if ASSEMBLY:
        return read_four(row.to(tl.int64) + tl.zeros(like.shape, tl.int64), WIDTH, True)
    else:
        found = ()
        for i in tl.static_range(WIDTH):
            found = found + (tl.load(row + i),)
        return found


@triton.jit
def read_four(place, WIDTH: tl.constexpr, PURE: tl.constexpr):
    """Return WIDTH numbers from an address in each lane, four at a time; reads that are not PURE stay in their loop."""
    found = ()
    for i in tl.static_range(0, WIDTH, 4):
        found = found + tl.inline_asm_elementwise(
            "ld.global.nc.v4.f32 {$0, $1, $2, $3}, [$4];",
            "=f,=f,=f,=f,l",
            [place + 4 * i],
            (tl.float32, tl.float32, tl.float32, tl.float32),
            is_pure=PURE,
            pack=1,
        )
    return found
