"""Torch computes with two threads in these tests, as the engine does on a machine with two cores."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def two_threads() -> None:
    torch.set_num_threads(2)
