"""Finding the model and the data that a name stands for.

A model is any object with ``parameters`` (float32 arrays by name) and ``loss_and_gradients(batch)``; a data source
is any object with ``next_batch``, ``reset`` and ``close``. A name is a built-in one, or ``package.module:factory``.

May import: ``config``, ``errors``, ``rwkv7``, ``data``, ``tokenizers``.
"""

import importlib
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from .config import WorkerConfig
from .errors import DataError, ModelError

DEFAULT_CONTEXT = 128


class TrainableModel(Protocol):
    """What a worker trains.

    Attributes:
        parameters: Arrays of floats by name. The worker writes new weights into them in place.
    """

    @property
    def parameters(self) -> Mapping[str, NDArray[np.floating]]:
        """Arrays of floats by name, always the same ones in the same order."""
        ...

    def loss_and_gradients(self, batch: Any) -> tuple[float, Mapping[str, NDArray[np.floating]]]:
        """Return the mean loss over a batch and its gradient for every parameter, by name."""
        ...


class DataSource(Protocol):
    """Where batches come from. A batch is whatever the model takes, with `len()` samples in it."""

    def next_batch(self, batch_size: int) -> Any:
        """Return at most `batch_size` samples; None when the pass over this shard is over."""
        ...

    def reset(self) -> None:
        """Begin another pass."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


# A data factory makes the source for one shard: (shard, total_shards) -> DataSource.
DataFactory = Callable[[int, int], DataSource]


def load_model(name: str, seed: int = 0) -> TrainableModel:
    """Build the model that a name stands for.

    Raises:
        ModelError: There is none of that name, or its factory failed.
    """
    from . import rwkv7

    if name in rwkv7.PRESETS:
        return rwkv7.RWKV7(rwkv7.PRESETS[name], seed=seed)
    if ":" not in name:
        raise ModelError(
            f"there is no model {name!r}. Built in are {', '.join(rwkv7.PRESETS)}; your own is package.module:factory."
        )
    model = load_object(name, ModelError)()
    if not hasattr(model, "parameters") or not callable(getattr(model, "loss_and_gradients", None)):
        raise ModelError(f"what {name} returned is no model: it needs `parameters` and `loss_and_gradients(batch)`.")
    return cast(TrainableModel, model)


def context_of(model: TrainableModel, wanted: int) -> int:
    """Tokens in one sample: as configured, else 128 for a built-in model, else 1: a sample is a sample."""
    from .rwkv7 import RWKV7

    return wanted or (DEFAULT_CONTEXT if isinstance(model, RWKV7) else 1)


def load_object(name: str, error: type[ModelError] | type[DataError]) -> Callable[..., Any]:
    """Import ``package.module:attribute``, from the current folder too.

    Raises:
        ModelError: (or the error given) It can't be imported or is not callable.
    """
    module, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:  # a console script does not have it there, `python -m` has
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ImportError as failure:
        raise error(f"can't import {module!r} for {name!r}: {failure}. Is it on PYTHONPATH?") from failure
    except AttributeError as failure:
        raise error(f"module {module!r} has no {attribute!r} (asked for by {name!r}).") from failure
    if not callable(found):
        raise error(f"{name!r} is not a function that can be called.")
    return cast(Callable[..., Any], found)


def load_data(config: WorkerConfig, model: TrainableModel) -> DataFactory:
    """Find the data that a worker's configuration names, and check that it is there.

    Raises:
        DataError: It is missing, or does not fit the model.
    """
    from . import data, tokenizers

    path, options = config.data.path, config.data
    if ":" in path and not Path(path).exists():
        return cast(DataFactory, load_object(path, DataError))
    data.check(path)
    tokenizer = tokenizers.get_tokenizer(options.tokenizer)
    vocabulary = getattr(getattr(model, "config", None), "vocabulary", None)
    if vocabulary is not None and tokenizer.vocab_size > vocabulary:
        raise DataError(
            f"the tokenizer '{options.tokenizer}' has {tokenizer.vocab_size} ids and the model {config.model.name} "
            f"only {vocabulary}. Choose another --tokenizer or --model."
        )
    context = context_of(model, config.training.context)
    opened: Counter[int] = Counter()

    def open_shard(shard: int, total: int) -> DataSource:
        source = data.open_data(
            path,
            tokenizer=tokenizer,
            context=context,
            shard=shard,
            total_shards=total,
            seed=config.training.seed,
            on_broken=options.on_broken,
        )
        source.seek(data.Position(opened[shard], 0))  # another order each time that the shard comes round
        opened[shard] += 1
        return source

    return open_shard
