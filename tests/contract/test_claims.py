"""Every claim of tests/claims.yaml has its test and the piece of code that keeps it."""

from __future__ import annotations

import pytest

from tests.claims import REPOSITORY, Claim, read_claims


@pytest.mark.parametrize("claim", read_claims(), ids=lambda claim: claim.claim)
def test_a_claim_has_its_test_and_the_code_that_keeps_it(claim: Claim) -> None:
    path, _, name = claim.test.partition("::")
    assert f"def {name.partition('[')[0]}" in (REPOSITORY / path).read_text()
    assert (REPOSITORY / claim.file).read_text().count(claim.before) == 1, "mend the claim in tests/claims.yaml"
    assert (REPOSITORY / claim.stated.partition(",")[0]).is_file()
