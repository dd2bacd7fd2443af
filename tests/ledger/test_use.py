import copy
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longturn.errors import LedgerError
from longturn.ledger import NO_USE, TIERS, TokenUse

counts = st.integers(0, 10**9)


@st.composite
def uses(draw: st.DrawFn) -> TokenUse:
    cached = draw(st.dictionaries(st.sampled_from(TIERS), counts))
    computed, reasoning = draw(counts), draw(counts)
    return TokenUse(
        logical=sum(cached.values()) + computed,
        cached=cached,
        computed=computed,
        output=reasoning + draw(counts),
        reasoning=reasoning,
        written=draw(counts),
    )


@given(uses())
def test_survives_json_pickle_and_copy(use: TokenUse) -> None:
    assert TokenUse.from_dict(json.loads(json.dumps(use.to_dict()))) == use
    assert pickle.loads(pickle.dumps(use)) == use
    assert copy.deepcopy(use) == use
    assert hash(copy.deepcopy(use)) == hash(use)


@given(uses(), uses())
def test_sums_add_up(one: TokenUse, other: TokenUse) -> None:
    total = one + other
    assert total == other + one
    assert total.cached_total == one.cached_total + other.cached_total
    assert total.logical == total.cached_total + total.computed
    assert total.output - total.reasoning == one.output - one.reasoning + other.output - other.reasoning
    assert one + NO_USE == one


@given(uses(), st.integers(-(10**6), 10**6).filter(bool))
def test_refuses_what_does_not_add_up(use: TokenUse, error: int) -> None:
    with pytest.raises(LedgerError):
        TokenUse(logical=use.logical + error, cached=use.cached, computed=use.computed)


@pytest.mark.parametrize(
    "fields",
    [
        {"logical": -1, "cached": {}, "computed": -1},
        {"logical": 0, "cached": {"device": -1}, "computed": 1},
        {"logical": 1, "cached": {"tape": 1}, "computed": 0},
        {"logical": 1, "cached": {}, "computed": 1, "output": 1, "reasoning": 2},
        {"logical": 1, "cached": {}, "computed": 1, "written": -1},
        {"logical": 1.0, "cached": {}, "computed": 1},
    ],
)
def test_refuses_unsound_counts(fields: dict) -> None:
    with pytest.raises(LedgerError):
        TokenUse(**fields)


@pytest.mark.parametrize(
    "data",
    [{}, {"logical": 1}, {"logical": "1", "cached": {}, "computed": 1}, {"logical": 1, "cached": 0, "computed": 1}],
)
def test_from_dict_refuses_other_objects(data: dict) -> None:
    with pytest.raises(LedgerError):
        TokenUse.from_dict(data)


def test_cached_is_a_read_only_copy_without_empty_tiers() -> None:
    cached = {"disk": 0, "device": 2}
    use = TokenUse(logical=2, cached=cached, computed=0)
    cached["device"] = 5
    assert use.cached == {"device": 2}
    with pytest.raises(TypeError):
        use.cached["device"] = 5  # type: ignore[index]
