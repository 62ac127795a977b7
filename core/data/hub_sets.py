"""This module reads data sets of the Hugging Face hub and folders of `save_to_disk`, through `datasets`.

A name is `owner/name[@revision][:config][:split]`; a revision is a commit of the data set, which pins it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from core.data.files import DataError

SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".gz", ".txt")
"""Ends the names of files, which are no ids of the hub."""
_NAME = re.compile(r"[\w.-]+/[\w.-]+(@[0-9a-f]{7,40})?(:[^:/]+){0,2}")


def is_hub_set(name: str) -> bool:
    """Return whether `name` reads as a set of the hub, or has a folder here in the place of owner/name."""
    named = _NAME.fullmatch(name) is not None and not name.endswith(SUFFIXES)
    return named or Path(name.partition(":")[0]).is_dir()


def read_hub_set(name: str) -> Iterator[dict[str, Any]]:
    """Yield the records of a set of the hub. Without the hub, its cache here may have them.

    Raises:
        DataError: there is no such data set, or the name leaves open which split is meant.
    """
    yield from map(dict, _open_split(name))


def locate(name: str, base: Path = Path()) -> Path:
    """Return where data lie: the path itself, from `base`, or the folder of a hub's data set in the cache.

    Raises:
        DataError: as read_hub_set.
    """
    path = base / name
    if path.exists() or not is_hub_set(name):
        return path
    return Path(_open_split(name).cache_files[0]["filename"]).parent


def _open_split(name: str) -> Any:
    hub, *rest = name.split(":")
    config, split = [None, None, *rest][-2:] if len(rest) < 2 else rest
    try:
        rows = _load(hub, config, split)
    except Exception as error:  # datasets raises what its many parts raise
        raise hub_error(name, error) from error
    if split is not None:
        return rows
    if len(rows) > 1:
        names = ", ".join(f"{name}:{split}" for split in rows)
        raise DataError(f"{name}: has several splits. Fix: name one of them: {names}.")
    return next(iter(rows.values()))


def read_saved_set(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a folder that `save_to_disk` of `datasets` wrote.

    Raises:
        DataError: it is another folder, has several splits, or is broken.
    """
    from datasets import load_from_disk

    if (folder / "dataset_dict.json").is_file():
        splits = sorted(path.parent.name for path in folder.glob("*/state.json"))
        raise DataError(f"{folder}: has the splits {', '.join(splits)}. Fix: name one of them: {folder / splits[0]}.")
    try:
        rows = load_from_disk(str(folder))
    except Exception as error:  # as above
        raise DataError(f"{folder}: datasets cannot read it ({error}). Fix: write it again by save_to_disk.") from error
    yield from map(dict, rows)


def _load(hub: str, config: str | None, split: str | None) -> Any:
    """Return a Dataset, or without `split` a mapping of all splits."""
    from datasets import load_dataset
    from datasets.packaged_modules.cache.cache import Cache
    from huggingface_hub import HfApi

    revision = None
    if not Path(hub).is_dir():
        hub, _, pin = hub.partition("@")
        revision = pin or None
        try:  # loading would try for half a minute to reach a hub that is not there
            HfApi().dataset_info(hub, revision=revision, timeout=10)
        except Exception as unreachable:  # httpx and the hub raise their own
            try:
                name = hub.partition("/")[2]
                version, commit = ("0.0.0", revision) if revision else ("auto", "auto")
                cached = Cache(dataset_name=name, repo_id=hub, config_name=config, version=version, hash=commit)
                return cached.as_dataset(split)
            except Exception:  # nothing of it is in the cache
                raise unreachable from None
    return load_dataset(hub, config, split=split, revision=revision)


def hub_error(name: str, error: Exception) -> DataError:
    return DataError(
        f"{name}: cannot be fetched from the hub ({type(error).__name__}: {str(error)[:200]}). Fix: check the network "
        "and the name, which is OWNER/NAME:SPLIT or OWNER/NAME:CONFIG:SPLIT, or download it elsewhere and give the "
        "file: --from FILE to `data download`, --data FILE to evaluations."
    )
