"""How bad input is refused: a ValueError with the name, the rule and the value, and a cure where there is one."""

import re

import pytest
import torch


def refuses(call, name, got, rule="must"):
    """Check that the call raises a ValueError "... name ... must rule; got ... value ...", perhaps with a cure."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011, the text is looked at below
        call()
    message = str(caught.value)
    assert re.search(rf"(?<!\w){re.escape(name)}(?!\w)", message.split("must")[0]), message
    assert rule in message.split("; got")[0], message
    value, cure = re.fullmatch(r"(.*?[^.])\.(?: ([A-Z].*))?", message.split("; got", 1)[1]).groups()
    assert got in value, message
    assert cure is None or len(cure.split()) >= 2, message


def meta(*shape):
    return torch.empty(shape, dtype=torch.float64, device="meta")
