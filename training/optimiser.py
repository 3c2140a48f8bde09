"""Optimiser (Muon for matrices, AdamW for other parameters) and learning-rate schedule."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Schedule:
    """Learning-rate schedule: warm-up, stable, linear decay, floor. Ends in steps; `floor` is a share of the peak rate.

    It does not depend on the length of the run, so a run can continue at the floor.
    """

    warmup: int = 100
    decay_from: int = 1000
    decay_to: int = 1600
    floor: float = 0.03

    def factor(self, step: int) -> float:
        """Return the factor of the peak rates at `step`."""
        decayed = (step - self.decay_from) / (self.decay_to - self.decay_from)
        return min((step + 1) / self.warmup, 1 - (1 - self.floor) * min(1.0, max(0.0, decayed)))

    def stable(self, step: int) -> bool:
        """Return whether the decay has not begun."""
        return step < self.decay_from


def orthogonalise(update: Tensor) -> Tensor:
    """Return approximately the nearest semi-orthogonal matrices: all singular values of [N, R, C] near 1.

    Five steps of the quintic Newton-Schulz iteration with the coefficients of Jordan et al. 2024, "Muon".
    """
    tall = update.shape[-2] > update.shape[-1]
    x = (update.mT if tall else update).bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (2.0315 * (gram @ gram) - 4.7750 * gram) @ x
    return (x.mT if tall else x).float()


class Muon(torch.optim.Optimizer):  # type: ignore[misc]
    """Nesterov momentum with orthogonalised updates, for matrices [R, C]; equal shapes are batched."""

    def __init__(self, params: list[nn.Parameter], lr: float, decay: float = 0.05) -> None:
        super().__init__(params, {"lr": lr, "momentum": 0.95, "weight_decay": decay})

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self) -> None:
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[nn.Parameter]] = defaultdict(list)
            for param in group["params"]:
                by_shape[tuple(param.shape)].append(param)
            for shape, params in by_shape.items():
                update = orthogonalise(torch.stack([self._momentum(p, group["momentum"]) for p in params]))
                scale = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                for param, direction in zip(params, update, strict=True):
                    param.mul_(1 - group["lr"] * group["weight_decay"]).sub_(direction, alpha=scale)

    def _momentum(self, param: nn.Parameter, beta: float) -> Tensor:
        buffer = self.state[param].setdefault("momentum", torch.zeros_like(param))
        buffer.lerp_(param.grad, 1 - beta)
        return param.grad.lerp(buffer, beta)


def build_optimisers(model: nn.Module, matrix_lr: float, other_lr: float) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices of the layers, and AdamW for the embedding (also the head) and the norms."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    adam = torch.optim.AdamW(others, lr=other_lr, betas=(0.9, 0.95), weight_decay=0.0)
    optimisers: list[torch.optim.Optimizer] = [Muon(matrices, matrix_lr), adam]
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["peak_lr"] = group["lr"]
    return optimisers
