"""How bad input is refused: a ValueError with the name, the rule and the value."""

import re

import pytest
import torch


def refuses(call, name, got, rule="must"):
    """Check that the call raises a ValueError "... name ... must rule; got ... value ...", then perhaps a remedy."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011, the text is looked at below
        call()
    message = str(caught.value)
    assert re.search(rf"(?<!\w){re.escape(name)}(?!\w)", message.split("must")[0]), message
    assert rule in message.split("; got")[0], message
    assert got in message.split("; got", 1)[1], message
    assert message.endswith("."), message


def meta(*shape):
    return torch.empty(shape, dtype=torch.float64, device="meta")
