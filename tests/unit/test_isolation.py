"""A step with one player's data leaves the other player bit-identical, optimizer state included."""

import copy

import pytest
import torch

from hanabi_grpo.errors import NonFiniteError
from hanabi_grpo.training.isolation import clip_per_player, parameters_by_adapter

NAMES = ("player_0", "player_1")


class _Adapters(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = torch.nn.Linear(4, 4).requires_grad_(False)
        self.lora_A = torch.nn.ModuleDict({name: torch.nn.Linear(4, 4, bias=False) for name in NAMES})

    def forward(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return self.base(x) + self.lora_A[name](x)


def _step(model: _Adapters, optimizer: torch.optim.Optimizer, data: dict[str, float]) -> dict[str, float]:
    optimizer.zero_grad()
    for name in NAMES:
        # A player without data goes through its micro-batch with a loss of zero, as in training.
        (model(torch.ones(2, 4), name).sum() * data.get(name, 0.0)).backward()
    norms = clip_per_player(parameters_by_adapter(model, NAMES), set(data), 1.0)
    optimizer.step()
    return norms


def test_weights_and_moments_of_a_player_without_data_do_not_move() -> None:
    torch.manual_seed(0)
    model = _Adapters()
    parameters = parameters_by_adapter(model, NAMES)
    optimizer = torch.optim.AdamW([one for values in parameters.values() for one in values], lr=0.1, weight_decay=0.1)
    for _ in range(3):
        _step(model, optimizer, {"player_0": 1.0, "player_1": 0.5})
    [other] = parameters["player_1"]
    weights, state = other.detach().clone(), copy.deepcopy(optimizer.state[other])
    assert state["exp_avg"].abs().max() > 0
    mine = parameters["player_0"][0].detach().clone()
    for _ in range(3):
        _step(model, optimizer, {"player_0": 1.0})
    assert not torch.equal(parameters["player_0"][0], mine)
    assert torch.equal(other, weights)
    assert all(torch.equal(optimizer.state[other][key], value) for key, value in state.items())


def test_a_large_gradient_of_one_player_does_not_shrink_the_others_step() -> None:
    def move(scale: float) -> torch.Tensor:
        torch.manual_seed(0)
        model = _Adapters()
        parameters = parameters_by_adapter(model, NAMES)
        optimizer = torch.optim.SGD([one for values in parameters.values() for one in values], lr=0.1)
        norms = _step(model, optimizer, {"player_0": scale, "player_1": 0.01})
        assert norms["player_0"] == pytest.approx(8.0 * scale, rel=1e-5)
        return parameters["player_1"][0].detach().clone()

    assert torch.equal(move(0.01), move(1000.0))


def test_a_gradient_that_is_not_a_number_stops_with_the_players_name() -> None:
    model = _Adapters()
    with pytest.raises(NonFiniteError, match=r"player_1: the gradient's norm is (nan|inf); nothing was updated"):
        _step(model, torch.optim.SGD(model.lora_A.parameters(), lr=0.1), {"player_0": 1.0, "player_1": float("inf")})


def test_the_base_model_is_nobodys_parameter() -> None:
    parameters = parameters_by_adapter(_Adapters(), NAMES)
    assert [len(values) for values in parameters.values()] == [1, 1]
