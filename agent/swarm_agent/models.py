"""Finding the model and the data that a name stands for.

A model is any object with ``parameters`` (float32 arrays by name) and ``loss_and_gradients(batch)``; a data source
is any object with ``next_batch``, ``reset`` and ``close``. A name is a built-in one, or ``package.module:factory``.

May import: ``checkpoint``, ``config``, ``errors``, ``theirs``, ``rwkv7``, ``data``, ``tokenizers``, ``fdtc``.
"""

import importlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from fdtc import MAX_MESSAGE, TensorSpec
from fdtc.messages import ModelTooLargeError, check_tensors

from . import checkpoint
from .config import WorkerConfig
from .errors import CheckpointError, DataError, ModelError
from .theirs import calling

if TYPE_CHECKING:
    from .rwkv7 import RWKV7

DEFAULT_CONTEXT = 128
MOST_MILLIONS = MAX_MESSAGE // 4_000_000  # parameters that one message of version 1 carries


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
    if ":" not in name:
        return _built_in(name, seed)
    factory = load_object(name, ModelError)
    with calling(f"{name}, which makes the model and is called without arguments,", ModelError):
        model = factory()
        fits = hasattr(model, "parameters") and callable(getattr(model, "loss_and_gradients", None))
    if not fits:
        raise ModelError(f"what {name} returned is no model: it needs `parameters` and `loss_and_gradients(batch)`.")
    return cast(TrainableModel, model)


def _built_in(name: str, seed: int) -> "RWKV7":
    from . import rwkv7  # here, since a person's own model needs none of it

    if name not in rwkv7.PRESETS:
        known = ", ".join(rwkv7.PRESETS)
        raise ModelError(f"there is no model {name!r}. Built in are {known}; your own is package.module:factory.")
    return rwkv7.RWKV7(rwkv7.PRESETS[name], seed=seed)


def require_trainable(name: str, method: str) -> None:
    """Refuse what can't be trained yet, before a large model is made for nothing.

    Raises:
        ModelError: The method is not "full", or a built-in model is too large for one message.
    """
    if method != "full":
        raise ModelError(
            f'{name} is to be trained with method = "{method}" ([training], FDTC_TRAINING_METHOD), which this version '
            f"of the agent can't do yet. Train all weights of a model of at most {MOST_MILLIONS} million parameters."
        )
    from . import rwkv7

    if name in rwkv7.PRESETS:
        shapes = rwkv7.parameter_shapes(rwkv7.PRESETS[name])
        check_sendable(TensorSpec(tensor, shape) for tensor, shape in shapes.items())


def check_sendable(specs: Iterable[TensorSpec]) -> None:
    """Refuse a model that the protocol can't carry.

    Raises:
        ModelError: Its weights do not fit into one message, or a tensor's name or shape can't be sent.
    """
    try:
        check_tensors(specs)
    except ModelTooLargeError as error:
        raise ModelError(f"{error}. Choose a model of at most {MOST_MILLIONS} million parameters.") from error
    except ValueError as error:
        raise ModelError(f"the model's parameters can't be sent: {error}.") from error


def parameters_of(model: TrainableModel) -> Mapping[str, NDArray[np.floating]]:
    """Take the parameters of a model, which may be a person's own.

    Raises:
        ModelError: Asking for them failed.
    """
    with calling("the model's `parameters`", ModelError):
        return model.parameters


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
    if not attribute or not all(part.isidentifier() for part in module.split(".")):
        raise error(f"{name!r} names nothing: your own code is package.module:factory, such as my_model:make.")
    here = str(Path.cwd())
    if here not in sys.path:  # a console script does not have it there, `python -m` has
        sys.path.insert(0, here)
    with calling(f"importing {module!r}", error):
        try:
            loaded = importlib.import_module(module)
        except ImportError as failure:
            raise error(f"can't import {module!r} for {name!r}: {failure}. Is it on PYTHONPATH?") from failure
    found = getattr(loaded, attribute, None)
    if not callable(found):
        raise error(f"module {module!r} has no function {attribute!r} (asked for by {name!r}).")
    return cast(Callable[..., Any], found)


def open_model(name: str) -> tuple["RWKV7", str]:
    """Open a trained model, or an untrained one as ``init:NAME``; return it with what was opened.

    Args:
        name: A checkpoint's directory, a directory of checkpoints (the newest whole one is taken), a .safetensors
            file, an official .pth file where torch is installed, or ``init:rwkv-tiny``.

    Raises:
        CheckpointError: There is no checkpoint there, or it is damaged.
        ModelError: It holds something else than an RWKV-7 model.
    """
    from .rwkv7 import RWKV7, Config

    if name.startswith("init:"):
        return _built_in(name.removeprefix("init:"), 0), name
    path = Path(name)
    try:
        if not path.exists():
            raise CheckpointError(f"there is no {name}. Name a checkpoint, a .safetensors file or init:rwkv-tiny.")
        if path.suffix == ".pth":
            tensors = _read_pth(path)
            return RWKV7(Config.from_parameters(tensors), tensors), name
        if path.is_dir():
            path = _checkpoint_in(path)
        return RWKV7.load(path), str(path)
    except ValueError as error:
        raise ModelError(f"{path} can't be opened as a model: {error}.") from error
    except OSError as error:
        raise CheckpointError(f"can't open {name}: {error.strerror}.") from error


def _checkpoint_in(path: Path) -> Path:
    """The directory itself if it is a checkpoint, verified; else the newest whole one in it."""
    if (path / checkpoint.MANIFEST).exists():
        return checkpoint.load(path).path
    newest = checkpoint.load_newest(path)
    if newest is None:
        raise CheckpointError(f"{path} holds no checkpoint. Name the directory given as --checkpoint-dir.")
    return newest.path


def _read_pth(path: Path) -> Mapping[str, NDArray[np.floating]]:
    try:
        import torch
    except ImportError as error:
        raise ModelError(f"reading {path} needs torch: pip install torch, or convert it to .safetensors.") from error
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
        return {name: tensor.float().numpy() for name, tensor in tensors.items()}
    except Exception as error:  # torch documents no closed set of errors for a damaged file
        raise ModelError(f"{path} is not a readable .pth file of tensors: {error}.") from error


def load_data(config: WorkerConfig, model: TrainableModel) -> DataFactory:
    """Find the data that a worker's configuration names, and check that it is there.

    Raises:
        DataError: It is missing, or does not fit the model.
    """
    from . import data, tokenizers

    path, options = config.data.path, config.data
    if ":" in path and not data.exists(Path(path)):
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
