"""What the parity tests train, and how two runs are compared."""

import torch
from safetensors.torch import load_file

from dynsl_app.server.folder import RunFolder

MODELS = {
    "cnn": ["model.dropout=0.25"],
    "mlp": ["model.dropout=0.25"],
    "resnet18": [],
    "mobilenet_v2": ["model.dropout=0.2"],
    "vgg11": ["model.dropout=0.5", "data.resize=32"],
    "vit_tiny": ["model.dropout=0.1"],
}

OPTIMIZERS = {
    "sgd": ["optimizer=sgd", "optimizer.lr=0.01", "optimizer.momentum=0.9"],
    "adam": ["optimizer=adam"],
}

UNEQUAL = [
    # three clients with unequal data, and a tail of one sample to merge; each test adds its data.limit
    "clients=3",
    "data=synthetic",
    "data.shape=[1,8,8]",
    "data.samples=40",
    "data.partition=quantity",
    "data.batch=3",
    "seed=2",
]


def assert_same(one: RunFolder, other: RunFolder) -> None:
    """Every tensor of the two merged models has the same bits, and so has the file."""
    left, right = load_file(one.model), load_file(other.model)
    assert left.keys() == right.keys()
    assert not [name for name in left if not torch.equal(left[name], right[name])]
    assert one.model.read_bytes() == other.model.read_bytes()
