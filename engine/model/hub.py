"""Finds the local folder of a hub id ("org/name"): in the local cache if it is complete, else by downloading it."""

from __future__ import annotations

from pathlib import Path

from slotdeck.engine.model.errors import ModelError, UsageError
from slotdeck.engine.model.hugging_face_folder import missing_files

_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]


def hub_folder(id: str) -> Path:
    """The folder of ``id``. The network is used only if the local cache lacks a file.

    Raises UsageError if there is no such model. Raises ModelError if it is gated or cannot be downloaded.
    """
    # The import takes a moment, and local models do not need it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    try:
        folder = Path(snapshot_download(id, allow_patterns=_PATTERNS, local_files_only=True))
        if (folder / "config.json").is_file() and not missing_files(folder):
            return folder
    except (LocalEntryNotFoundError, ModelError):
        pass  # not cached, or only in part: downloaded below
    except HFValidationError as error:
        raise UsageError(f"{id!r} is not a hub id: {error}") from error
    try:
        return Path(snapshot_download(id, allow_patterns=_PATTERNS))
    except GatedRepoError as error:
        raise ModelError(
            f"{id} is gated: accept its licence on the model's page with your account, then run `hf auth login` (or set"
            " HF_TOKEN) and start again. Once downloaded it needs neither."
        ) from error
    except RepositoryNotFoundError as error:
        raise UsageError(
            f"there is no model {id} on the hub, or it is private: check the name, or run `hf auth login` with an"
            " account that may read it."
        ) from error
    except (OfflineModeIsEnabled, LocalEntryNotFoundError) as error:
        raise ModelError(
            f"{id} is not (wholly) in the local cache and cannot be downloaded: the hub is out of reach or"
            " HF_HUB_OFFLINE is set. Connect once to download it, or point --model at a folder or a .gguf file."
        ) from error
    except (HfHubHTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"{id} could not be downloaded ({reason}). Check the network and the free space, then start again; what was"
            " fetched is kept."
        ) from error
