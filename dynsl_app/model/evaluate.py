"""Loss and accuracy of a whole model on held-out samples."""

from dataclasses import dataclass

import torch
from torch import nn

from dynsl_app.data.source import Samples


@dataclass(frozen=True)
class Score:
    """Sums over ``samples`` held-out samples."""

    samples: int
    correct: int
    loss_sum: float

    def __add__(self, other: "Score") -> "Score":
        return Score(self.samples + other.samples, self.correct + other.correct, self.loss_sum + other.loss_sum)

    @property
    def loss(self) -> float:
        """Mean loss, NaN without samples."""
        return self.loss_sum / self.samples if self.samples else float("nan")

    @property
    def accuracy(self) -> float:
        """Share of correct predictions in [0, 1], NaN without samples."""
        return self.correct / self.samples if self.samples else float("nan")


@torch.no_grad()
def score(model: nn.Module, samples: Samples, batch: int, device: str = "cpu") -> Score:
    """Evaluate ``model`` in eval mode on all of ``samples``, in order, ``batch`` at a time."""
    model.to(device).eval()
    correct, loss_sum, total = 0, 0.0, len(samples)
    for start in range(0, total, batch):
        indices = torch.arange(start, min(start + batch, total))
        target = samples.targets[indices].to(device)
        logits = model(samples.fetch(indices).to(device))
        loss_sum += float(nn.functional.cross_entropy(logits, target, reduction="sum"))
        correct += int((logits.argmax(dim=1) == target).sum())
    return Score(total, correct, loss_sum)
