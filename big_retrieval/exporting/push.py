"""Exports on a model hub: a folder goes up, and `import_model(NAME)` reads it there."""

import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from big_retrieval.errors import UserError
from big_retrieval.exporting import certificate as certificates
from big_retrieval.exporting.certificate import FAILED, UNVERIFIED
from big_retrieval.exporting.export import export, holding
from big_retrieval.inference.load import TrainedModel

log = logging.getLogger(__name__)


def push(
    model: TrainedModel,
    name: str,
    *,
    to: str = "",
    fields: Sequence[str] = (),
    python: str = "",
    license: str = "unknown",
    private: bool = False,
) -> str:
    """Exports a model and uploads the folder.

    Args:
      model: of `load` or `import_model`.
      name: on the hub, such as "someone/red-circles".
      to: the target, see `export`; "": the first one that can hold the model.
      fields: see `export`.
      python: see `export`.
      license: for the model card; hubs know names such as "mit".
      private: whether only its owner sees a model that is new on the hub.

    Returns:
      The model's address.

    Raises:
      UserError: what `export` and `upload` raise.
    """
    _check_name(name)  # before the export, which takes longer
    target = to or next(holding(model, fields), "")
    if not target:
        raise UserError("no target can hold the model: name one as --target, which says why.")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / name.split("/")[-1]
        export(model, to=target, out=folder, fields=fields, python=python, license=license)
        return upload(folder, name, private=private)


def upload(folder: str | Path, name: str, *, private: bool = False) -> str:
    """Uploads an export. Files that the model has on the hub already are not sent again.

    Args:
      folder: of `export`.
      name: on the hub.
      private: see `push`.

    Returns:
      The model's address.

    Raises:
      UserError: no whole export, one whose embeddings differ, a name that is none, or a hub that
        cannot be reached or refuses; or a public model there, which is to be private.
    """
    _check_name(name)
    import huggingface_hub

    written = certificates.read(Path(folder))
    if written.status == FAILED:
        raise UserError(f"{folder} is not uploaded, as its certificate failed: {written.reason}.")
    if written.status == UNVERIFIED:
        log.warning(
            f"the export is unverified ({written.reason}): certificate.json says so there, too; "
            "to verify it first: big-retrieval export verify FOLDER --python=PATH, then push "
            "--folder=FOLDER"
        )
    api = huggingface_hub.HfApi()
    with _hub(name):
        api.create_repo(name, private=private or None, exist_ok=True)
        if private and api.model_info(name).private is False:
            raise UserError(
                f"{name} exists and everybody sees it: leave --private out, or give another --to."
            )
        log.info(f"uploading to {api.endpoint}/{name} ...")
        message = f"Export for {written.to} by big_retrieval"
        api.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
    address = f"{api.endpoint}/{name}"
    log.info(f"uploaded to {address}; to use it: big_retrieval.import_model({name!r})")
    return address


def _check_name(name: str) -> None:
    import huggingface_hub.utils

    problem = "" if name.count("/") == 1 else "it must be OWNER/NAME."
    try:
        huggingface_hub.utils.validate_repo_id(name)
    except huggingface_hub.errors.HFValidationError as error:
        problem = str(error).strip().split("\n")[0]
    if problem:
        raise UserError(f"--to {name!r} is no name on the hub: {problem}")


@contextmanager
def _hub(name: str) -> Iterator[None]:
    """What the hub answers to an upload, in a sentence."""
    import huggingface_hub.errors as errors

    try:
        yield
    except errors.LocalTokenNotFoundError:
        raise UserError(
            "the hub wants to know who you are: `hf auth login`, or set HF_TOKEN to a token that "
            "may write."
        ) from None
    except errors.OfflineModeIsEnabled:
        raise UserError("the hub is not asked while HF_HUB_OFFLINE is set: unset it.") from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        reason = (error.server_message or str(error)).strip().split("\n")[0]
        if status in (401, 403):
            raise UserError(
                f"the hub does not let you write {name} ({reason}): check --to, and that the token "
                "of `hf auth login` or HF_TOKEN may write there."
            ) from None
        raise UserError(
            f"the hub refused {name} ({status}: {reason}); the same command tries again."
        ) from None
    except (errors.HTTPError, OSError) as error:  # pyright: ignore[reportPrivateImportUsage]
        raise UserError(
            f"the hub cannot be reached ({error}): check the network; the same command tries again."
        ) from None
