"""What a device makes of the run's settings: its data, its model, its place."""

import torch

from dynsl_app.algorithms import ALGORITHMS
from dynsl_app.data.load import client_data, load_source
from dynsl_app.data.loader import ClientData
from dynsl_app.data.source import DataSpec
from dynsl_app.model.build import build_chain
from dynsl_app.model.chain import Block, Chain
from dynsl_app.model.local_head import local_head
from dynsl_app.model.probe import probe
from dynsl_app.settings import NodeSettings, Settings


def prepare(settings: Settings, node: NodeSettings, client: int) -> tuple[DataSpec, ClientData, Chain]:
    """What its data are like, the client's own, and the run's model with weights that are still to be loaded.

    Also gives this thread its number of torch threads; the bits of a run depend on it (ALGORITHMS §1).

    Raises
    ------
    DynslError
        Data or model cannot be had on this device; the message names the setting and the remedy.
    """
    torch.set_num_threads(node.threads or settings.threads)
    allow = frozenset(name.strip() for name in node.allow.split(",") if name.strip())
    source = load_source(settings.data, root=node.data_root, allow=allow)
    data = client_data(source, settings.data, client=client, clients=settings.clients, seed=settings.seed)
    return source.spec, data, build_chain(settings.model, source.spec, settings.seed, allow)


def head_for(settings: Settings, chain: Chain, spec: DataSpec, cut: int) -> Block | None:
    """The classifier at the cut, of weights that are still to be loaded, where clients train on losses of their own.

    ``chain`` must be whole.
    """
    if not ALGORITHMS[settings.algorithm.name].local_loss or cut == len(chain):
        return None
    return local_head(probe(chain, spec)[cut - 1], spec.classes, cut)
