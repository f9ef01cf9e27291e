"""What a loaded model was trained by, which the run of its fine-tuning starts from."""

from os import PathLike
from pathlib import Path
from typing import Any, Final

from huggingface_hub import try_to_load_from_cache
from torch import nn

from epsilon_ledger import ModelOrigin, Origin, Run, RunOrigin
from epsilon_ledger._opacus.errors import UnsupportedTrainingError
from epsilon_ledger._transformers.training import RUN_FILE, run_state

_WEIGHTS: Final = ("model.safetensors", "adapter_model.safetensors", "pytorch_model.bin", "adapter_model.bin")
"""Files of whole models and of adapters."""


def origins_of(source: nn.Module | str | PathLike[str]) -> list[Origin]:
    """Find what a loaded model was trained by, for `client.create_run(..., starts_from=origins_of(model))`.

    A folder that a private Trainer has written names its run. Any other model is from outside, by its name and the
    digest of its weights. A model that was made with random weights starts from nothing.

    Args:
        source: a model that `from_pretrained` has loaded, or a folder; of adapters that `PeftModel` has loaded, the
            folder, since the model does not know it.

    Returns:
        At most one origin.

    Raises:
        ValueError: its weights are not in one file here: name them by `ModelOrigin`.
    """
    if not isinstance(source, nn.Module):
        return [_of_folder(Path(source))]
    bare = _bare(source)
    name = str(getattr(bare, "name_or_path", ""))
    if not name:
        return []
    return [_of_folder(Path(name)) if Path(name).is_dir() else _of_hub(name, getattr(bare, "config", None))]


def require_declared_origin(model: nn.Module, run: Run) -> None:
    """Require that a run declares the other run that has trained a model.

    Raises:
        UnsupportedTrainingError: it does not.
    """
    folder = Path(str(getattr(_bare(model), "name_or_path", "")) or RUN_FILE)
    if not (folder / RUN_FILE).is_file():
        return
    trained = run_state(str(folder))["run"]
    declared = {each.run for each in run.starts_from or () if isinstance(each, RunOrigin)}
    if trained not in {run.id, *declared}:
        raise UnsupportedTrainingError(
            f"The model was loaded from {folder}, which {trained} has trained, and {run.id} does not say that it "
            "starts from it: the model reveals what both have spent. Register the run by "
            "client.create_run(..., starts_from=origins_of(model)), or resume the one that has trained the model."
        )


def _bare(model: nn.Module) -> Any:  # noqa: ANN401 - a model of Transformers, or another module
    return getattr(model, "get_base_model", lambda: model)()


def _of_folder(folder: Path) -> Origin:
    if (folder / RUN_FILE).is_file():
        return RunOrigin(run_state(str(folder))["run"])
    found = next((folder / name for name in _WEIGHTS if (folder / name).is_file()), None)
    return _of_weights(found, folder.resolve().name)


def _of_hub(name: str, config: Any) -> ModelOrigin:  # noqa: ANN401 - of Transformers
    revision = getattr(config, "_commit_hash", None)
    cached = (try_to_load_from_cache(name, file, revision=revision) for file in _WEIGHTS)
    return _of_weights(next((Path(path) for path in cached if isinstance(path, str)), None), name)


def _of_weights(file: Path | None, name: str) -> ModelOrigin:
    if file is None:
        raise ValueError(
            f"The weights of {name} are not in one file here ({', '.join(_WEIGHTS)}), so that they have no digest. "
            "Name them yourself: ModelOrigin(name, sha256)."
        )
    return ModelOrigin.of_file(file, name)
