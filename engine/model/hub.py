"""A hub id ("org/name") to a local folder, from the local cache when it is whole, else by download."""

from __future__ import annotations

from pathlib import Path

from slotdeck.engine.model.errors import ModelError, UsageError
from slotdeck.engine.model.hugging_face_folder import missing_files

_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]


def hub_folder(id: str) -> Path:
    """The snapshot of ``id``. The network is used only when the local cache lacks a file of it.

    Raises UsageError for no such model; ModelError that says what to do: gated, offline, no network.
    """
    # The import takes a moment and is of no use to local models.
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
        pass  # not cached, or in part: fetched below
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
