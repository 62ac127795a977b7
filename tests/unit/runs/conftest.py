from __future__ import annotations

import pytest


@pytest.fixture
def config() -> dict:
    return {"method": "memagent", "preset": "tiny", "train": {"lr": 5e-4, "steps": 120, "kl": 0.0}}
