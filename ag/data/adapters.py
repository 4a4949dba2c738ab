"""DataLoaders of PyTorch, taken apart: their dataset and settings are used, and batches are made here."""

from __future__ import annotations

from typing import Any

_SHUFFLES = {"RandomSampler": True, "SequentialSampler": False}


def is_torch_loader(given: object) -> bool:
    """Return whether it is a DataLoader of PyTorch, or derived from one; does not import PyTorch."""
    return any(kind.__name__ == "DataLoader" and kind.__module__.startswith("torch.") for kind in type(given).__mro__)


def torch_settings(loader: Any) -> tuple[object, int, bool, bool]:
    """Return dataset, batch size, shuffle and drop_last of a DataLoader of PyTorch."""
    sampler, collate = type(loader.sampler).__name__, getattr(loader.collate_fn, "__name__", "an object")
    if sampler not in _SHUFFLES or getattr(loader.sampler, "replacement", False) or (
            len(loader.sampler) != len(loader.dataset)) or loader.batch_size is None or collate != "default_collate":
        raise ValueError(f"ag_dataloader: the DataLoader of PyTorch has batch_size {loader.batch_size}, {sampler} and "
                         f"{collate}; a batch_size, shuffle=True or False, and no collate_fn are required. Give its "
                         f"dataset, or a list of its samples.")
    return loader.dataset, int(loader.batch_size), _SHUFFLES[sampler], bool(loader.drop_last)
