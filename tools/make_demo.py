"""Trains and exports the model behind `ptegpu demo` into src/ptegpu/demo; needs torch, executorch and scikit-learn.

    pip install -e '.[export]' scikit-learn && python tools/make_demo.py

`digits.pte` classifies the 8×8 handwritten digits that come with scikit-learn; `digits.npz` holds one image per class
that it was not trained on, their labels, and what PyTorch makes of them.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import torch
from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner
from executorch.exir import to_edge_transform_and_lower
from sklearn.datasets import load_digits
from torch import Tensor, nn

FOLDER = Path(__file__).resolve().parent.parent / "src" / "ptegpu" / "demo"
HELD_OUT = 297  # the last images of 1,797
EPOCHS, BATCH = 200, 100


class Digits(nn.Module):
    """(1, 8, 8) brightness from 0 to 1 → (1, 10) probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)
        )

    def forward(self, image: Tensor) -> Tensor:
        return torch.softmax(self.layers(image), dim=-1)


def train(images: Tensor, labels: Tensor) -> Digits:
    model = Digits()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(images)).split(BATCH):
            noisy = images[rows] + 0.05 * torch.randn_like(images[rows])
            loss = nn.functional.cross_entropy(model.layers(noisy), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    return model.eval()


def main() -> None:
    logging.getLogger().setLevel(logging.ERROR)
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.from_numpy(digits.images / 16).float()  # (1797, 8, 8)
    labels = torch.from_numpy(digits.target)
    model = train(images[:-HELD_OUT], labels[:-HELD_OUT])
    with torch.no_grad():
        right = model(images[-HELD_OUT:]).argmax(1) == labels[-HELD_OUT:]
    chosen = [len(images) - HELD_OUT + int(torch.nonzero(labels[-HELD_OUT:] == digit)[0]) for digit in range(10)]
    with torch.no_grad():
        expected = torch.cat([model(images[k : k + 1]) for k in chosen])
    program = to_edge_transform_and_lower(
        torch.export.export(model, (images[:1],)), partitioner=[VulkanPartitioner()]
    ).to_executorch()
    FOLDER.mkdir(exist_ok=True)
    program.save(str(FOLDER / "digits.pte"))
    np.savez_compressed(
        FOLDER / "digits.npz", images=images[chosen].numpy(), labels=labels[chosen].numpy(), expected=expected.numpy()
    )
    sizes = ", ".join(f"{file.name} {file.stat().st_size:,} bytes" for file in sorted(FOLDER.glob("digits.*")))
    print(f"{100 * right.float().mean():.1f} % of {HELD_OUT} held-out images right; {sizes}")


if __name__ == "__main__":
    main()
