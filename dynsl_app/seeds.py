"""Seeds for everything random, from what the draw is for and never from when or where it happens."""

import hashlib
import json


def derive_seed(*parts: int | str) -> int:
    """Mix parts such as ``(seed, "batches", client, round, epoch)`` into one seed.

    Equal parts give the same seed on every machine, Python version and process (``hash()`` does not); any
    change in a part, its type or its position gives an unrelated one.

    Returns
    -------
    int
        In 0..2**63-1, so that ``torch.Generator.manual_seed`` and ``numpy.random.default_rng`` take it.

    Raises
    ------
    TypeError
        If a part is neither an int nor a str.
    """
    text = json.dumps(parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
