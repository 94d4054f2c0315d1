"""Exports on a model hub: a folder is uploaded, and `import_model(NAME)` reads it there."""

import logging
import tempfile
from collections.abc import Sequence
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
    """Exports a model, uploads the folder and returns its address.

    Args:
      model: result of `load` or `import_model`.
      name: name on the hub, such as "someone/red-circles".
      to: target, see `export`; empty for the first target that can hold the model.
      fields: fields whose encoders are exported; empty for all.
      python: interpreter of an environment with the library; empty for this one.
      license: license for the model card, such as "mit".
      private: True if only the owner may see a new model.

    Raises:
      UserError: see `export` and `upload`.
    """
    _check_name(name)  # before the export, which takes longer
    target = to or next(holding(model, fields), "")
    if not target:
        raise UserError("No target can hold the model. Add --target=NAME for the reason.")
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / name.split("/")[-1]
        export(model, to=target, out=folder, fields=fields, python=python, license=license)
        return upload(folder, name, private=private)


def upload(folder: str | Path, name: str, *, private: bool = False) -> str:
    """Uploads an export and returns its address; arguments as in `push`.

    Raises:
      UserError: not an export, a failed certificate, an invalid name, `private` for a model that is
        public, or an error of the hub.
    """
    _check_name(name)
    import huggingface_hub
    from huggingface_hub import errors

    certificate = certificates.read(Path(folder))
    if certificate.status == FAILED:
        raise UserError(f"Not uploaded: the certificate of {folder} failed: {certificate.reason}.")
    if certificate.status == UNVERIFIED:
        log.warning(
            f"the export is unverified ({certificate.reason}); to verify it first: big-retrieval "
            "export verify FOLDER --python=PATH"
        )
    api = huggingface_hub.HfApi()
    address = f"{api.endpoint}/{name}"
    try:
        api.create_repo(name, private=private or None, exist_ok=True)
        if private and api.model_info(name).private is False:
            raise UserError(
                f"Repository {name} exists and is public. Remove --private, or choose another --to."
            )
        log.info(f"uploading to {address} ...")
        message = f"Export for {certificate.to} by big_retrieval"
        api.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
    except (errors.HTTPError, OSError) as error:  # pyright: ignore[reportPrivateImportUsage]
        reason = getattr(error, "server_message", None) or str(error).strip().split("\n")[0]
        raise UserError(
            f"Cannot upload to {address}: {reason}. Check the network, --to, and that the token of "
            "`hf auth login` or HF_TOKEN may write there."
        ) from None
    log.info(f"uploaded to {address}; to use it: big_retrieval.import_model({name!r})")
    return address


def _check_name(name: str) -> None:
    from huggingface_hub import errors, utils

    try:
        utils.validate_repo_id(name)
    except errors.HFValidationError as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"Invalid --to={name}: {reason}") from None
    if name.count("/") != 1:
        raise UserError(f"Invalid --to={name}. Give OWNER/NAME.")
