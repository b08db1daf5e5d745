"""What outlives a round: the merged model, states that persist, totals. What a checkpoint holds."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from dynsl_app.model.chain import Chain
from dynsl_app.model.evaluate import Score
from dynsl_app.model.segment import CALM_DOWN, all_finite
from dynsl_app.model.state import block_weights
from dynsl_app.orders import TrainReply
from dynsl_app.plan import Plan
from dynsl_app.server.aggregate import Contribution, average, batchnorm_names, private_average
from dynsl_app.server.checkpoint import Checkpoint
from dynsl_app.server.folder import RunFolder
from dynsl_app.server.heads import Heads
from dynsl_app.settings import Settings
from dynsl_app.summary import Summary

Tensors = Mapping[str, Tensor]


class Trained(Protocol):
    """What a client did in a round: ``traffic`` are bytes up and down, ``generation`` its moves."""

    cut: int
    generation: int
    samples: int
    loss_sum: float
    correct: int

    @property
    def traffic(self) -> tuple[int, int]: ...


@dataclass
class Standing:
    """A run between two rounds.

    Attributes
    ----------
    chain
        The merged model.
    optimizers, head_optimizers
        With ``optimizer.persist=run``: state of a client's private blocks, wherever they were, by client; and of the
        shared heads, by head.
    local_heads
        Where clients train on losses of their own: weights of the classifiers at their cuts, by cut.
    batchnorms
        With ``server.batchnorm=local``: a client's own BatchNorm parameters and statistics of its private blocks.
    """

    chain: Chain
    round: int = 0
    optimizers: dict[int, Tensors] = field(default_factory=dict)
    head_optimizers: dict[int, Tensors] = field(default_factory=dict)
    batchnorms: dict[int, Tensors] = field(default_factory=dict)
    local_heads: dict[int, Tensors] = field(default_factory=dict)
    epoch_s: list[float] = field(default_factory=list)
    bytes_up: int = 0
    bytes_down: int = 0
    moves: int = 0
    cuts: dict[int, int] = field(default_factory=dict)
    score: Score = field(default_factory=lambda: Score(0, 0, 0.0))

    def weights(self, client: int, low: int, high: int) -> dict[str, Tensor]:
        """What the client starts with in blocks low+1..high: the merged model, and what is its own.

        And in the classifier at a cut ``high``, if there are any.
        """
        own = self.batchnorms.get(client, {})
        merged = {name: value for block in self.chain.span(low, high) for name, value in block_weights(block).items()}
        return {name: own.get(name, value) for name, value in merged.items()} | dict(self.local_heads.get(high, {}))

    def optimizer(self, client: int, low: int, high: int) -> dict[str, Tensor]:
        """The client's optimizer state that persists, for blocks low+1..high."""
        names = {name for block in self.chain.span(low, high) for name, _ in block.named_parameters_global()}
        names |= self.local_heads.get(high, {}).keys()
        return {
            path: value for path, value in self.optimizers.get(client, {}).items() if path.rpartition("/")[0] in names
        }

    def unfit(self, reply: TrainReply, cut: int) -> str | None:
        """Why a reply's weights cannot be used for blocks 1..cut; None if they can."""
        if reply.cut != cut:
            return f"its reply holds blocks 1..{reply.cut}, but its cut was {cut} at the end"
        for name, value in self.weights(reply.client, 0, reply.cut).items():
            sent = reply.weights.get(name)
            if sent is None or sent.shape != value.shape or sent.dtype != value.dtype:
                form = f"{value.dtype}{list(value.shape)}"
                return f"its reply does not hold {name} as {form}; it must build the same model as the server"
            if not all_finite(sent):
                return f"its {name} has NaN or Inf; {CALM_DOWN}"
        return None

    def aggregate(
        self,
        plan: Plan,
        heads: Heads,
        replies: Mapping[int, TrainReply],
        samples: Mapping[int, int],
        settings: Settings,
    ) -> None:
        """Merge what the clients trained into the model, in order of client id.

        Parameters
        ----------
        samples
            S_i of the clients to count, as the server saw them.
        """
        private_blocks = self.chain.span(0, plan.boundary)
        names = {name for block in private_blocks for name in block_weights(block)}
        contributions: list[Contribution] = []
        for client in sorted(samples):
            copies = heads.private(client)
            whole = {**replies[client].weights, **copies.weights()}
            contributions.append((samples[client], {name: whole[name] for name in names}))
            if settings.optimizer.persist == "run":
                self.optimizers[client] = {**replies[client].optimizer, **copies.optimizer_state()}
        batchnorm = batchnorm_names(private_blocks)
        if settings.server.batchnorm == "local":
            for client, (_, weights) in zip(sorted(samples), contributions, strict=True):
                self.batchnorms[client] = {name: weights[name].detach().to("cpu") for name in batchnorm}
        merged = private_average(contributions, batchnorm, settings.server.batchnorm)
        if plan.heads:
            per_head = [0] * plan.heads
            for client, count in samples.items():
                per_head[plan.lane_of(client)] += count
            used = [(count, heads.shared(k).weights()) for k, count in enumerate(per_head) if count]
            merged.update(average(used))
            if settings.optimizer.persist == "run":
                self.head_optimizers = {k: heads.shared(k).optimizer_state() for k in range(plan.heads)}
        for block in self.chain.span(0, len(self.chain)):
            for name, own in block_weights(block).items():
                own.copy_(merged[name])
        for cut, before in self.local_heads.items():
            trained = [client for client in sorted(samples) if replies[client].cut == cut]
            if trained:
                self.local_heads[cut] = average(
                    [(samples[one], {name: replies[one].weights[name] for name in before}) for one in trained]
                )

    def count(
        self, round_: int, epoch_s: float, clients: Mapping[int, Trained], finished: Collection[int]
    ) -> dict[str, Any]:
        """Note a completed round.

        Parameters
        ----------
        clients
            All that took part.
        finished
            Those of them that count.

        Returns
        -------
        dict
            What its event ``round_end`` says of clients and training; losses are None where nothing was computed.
        """
        traffic = [client.traffic for client in clients.values()]
        up, down = sum(up for up, _ in traffic), sum(down for _, down in traffic)
        moves = sum(client.generation for client in clients.values())
        cuts = {client: one.cut for client, one in sorted(clients.items())}
        done = [clients[client] for client in finished]
        trained = Score(sum(o.samples for o in done), sum(o.correct for o in done), sum(o.loss_sum for o in done))
        self.round = round_
        self.epoch_s.append(epoch_s)
        self.bytes_up += up
        self.bytes_down += down
        self.moves += moves
        self.cuts.update(cuts)
        return {
            "train_loss": trained.loss if trained.samples else None,
            "train_accuracy": trained.accuracy if trained.samples else None,
            "bytes_up": up,
            "bytes_down": down,
            "samples": trained.samples,
            "clients": len(done),
            "lost": sorted(clients.keys() - set(finished)),
            "cuts": {str(client): cut for client, cut in cuts.items()},
            "moves": moves,
        }

    def checkpoint(self) -> Checkpoint:
        """As a value to save."""
        states = {f"client/{client}/optimizer": state for client, state in self.optimizers.items()}
        states |= {f"head/{head}/optimizer": state for head, state in self.head_optimizers.items()}
        states |= {f"cut/{cut}/local_head": weights for cut, weights in self.local_heads.items()}
        states |= {f"client/{client}/batchnorm": state for client, state in self.batchnorms.items()}
        meta = {
            "epoch_s": self.epoch_s,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "moves": self.moves,
            "cuts": {str(client): cut for client, cut in self.cuts.items()},
            "samples": self.score.samples,
            "correct": self.score.correct,
            "loss_sum": self.score.loss_sum,
        }
        return Checkpoint(self.round, self.chain.merged_state(), states, meta)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint. Raises KeyError if it is of another model."""
        meta = checkpoint.meta
        self.round = checkpoint.round
        self.chain.load_merged_state(checkpoint.weights)
        for name, state in checkpoint.states.items():
            kind, index, what = name.split("/")
            target = self.head_optimizers if kind == "head" else getattr(self, f"{what}s")
            target[int(index)] = state
        self.epoch_s = list(meta["epoch_s"])
        self.bytes_up, self.bytes_down, self.moves = meta["bytes_up"], meta["bytes_down"], meta["moves"]
        self.cuts = {int(client): cut for client, cut in meta["cuts"].items()}
        self.score = Score(meta["samples"], meta["correct"], meta["loss_sum"])

    def summary(self, settings: Settings, folder: RunFolder, total_s: float) -> Summary:
        """The run's final numbers."""
        scored = self.score.samples > 0
        return Summary(
            accuracy=self.score.accuracy if scored else None,
            loss=self.score.loss if scored else None,
            rounds=self.round,
            epoch_s=tuple(self.epoch_s),
            total_s=total_s,
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
            moves=self.moves,
            cuts=dict(sorted(self.cuts.items())),
            clients=settings.clients,
            algorithm=settings.algorithm.name,
            model=settings.model.name,
            data=settings.data.name,
            seed=settings.seed,
            name=settings.name,
            run_dir=str(folder.path),
        )
