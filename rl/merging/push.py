"""Push a folder to the Hugging Face hub, in one commit, for push= of merge.py.

huggingface_hub finds the token (HF_TOKEN, or `hf auth login`) and the hub's address (HF_ENDPOINT).
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi, get_token
from huggingface_hub.utils import RepositoryNotFoundError, disable_progress_bars

from lora.peft_files import read_adapter_config
from models.chat.templates import TOOL_USE
from models.weights import HUB_ID, inside
from rl.config.refusals import Refusal
from rl.merging.model_card import CARD, model_card, renamed
from rl.run.files import read_json


def check(name: str, private: bool) -> None:
    """Raise ValueError with one line for what a push would fail by: a name, a token, the network, or a repository that
    everybody can read though it is to be private."""
    if not HUB_ID.fullmatch(name) or ".." in name:
        raise Refusal(f"push={name} is not a name on the hub such as user/name")
    if not get_token():
        raise Refusal(f"push={name}: no token; set HF_TOKEN or run `hf auth login`")
    with _one_line(name):
        HfApi().whoami()
        public = _is_public(name)
    if private and public:
        raise Refusal(f"push={name}: this repository is there and public; private=true is for a new one")


def push_written(folder: Path, name: str, private: bool, card_file: str) -> None:
    """Push a merged checkpoint or an adapter that is written, with its card, in one commit; print the address.

    card_file: the card's file; empty: the folder's README.md, or one made from the run. Raise ValueError if the folder
    holds neither a model nor an adapter.
    """
    base = _base(folder)
    card = Path(card_file or folder / CARD)
    is_adapter = (folder / "adapter_config.json").is_file()
    text = card.read_text(encoding="utf-8") if card.is_file() else model_card(name, folder, base, is_adapter)
    text = text if card_file else renamed(text, folder.name, name)
    if is_adapter and Path(base).is_dir():
        print(f"{name}: adapter_config.json names {base}, a folder of this machine; others need the base's name")
    paths = [*sorted(folder.iterdir()), folder / TOOL_USE]
    files = {path.relative_to(folder).as_posix(): inside(path) for path in paths if path.is_file()}
    files[CARD] = text.encode()
    print(f"pushing {len(files)} files to {name}", flush=True)
    again = f"python merge.py out={folder} push={name}{' private=true' * private}"
    if not sys.stderr.isatty():
        disable_progress_bars()
    with _one_line(name, f"; {folder} is whole: {again}"):
        api = HfApi()
        api.create_repo(name, private=private or None, exist_ok=True)
        operations = [CommitOperationAdd(path, content) for path, content in files.items()]
        print(api.create_commit(name, operations, commit_message=f"Upload {folder.name}").commit_url)


def _base(folder: Path) -> str:
    """Return the base of the adapter or of the merged model in a folder, or ""."""
    if (folder / "adapter_config.json").is_file():
        return read_adapter_config(folder).get("base_model_name_or_path") or ""
    if not (folder / "config.json").is_file():
        raise Refusal(f"out={folder}: neither a model nor an adapter is there to push")
    report = folder / "merge_report.json"
    return read_json(report)["base"] if report.is_file() else ""


def _is_public(name: str) -> bool:
    try:
        return not HfApi().repo_info(name).private
    except RepositoryNotFoundError:
        return False


@contextmanager
def _one_line(name: str, hint: str = "") -> Iterator[None]:
    """Context that raises ValueError, one line with the hint, for what the hub and its client raise."""
    try:
        yield
    except Exception as error:  # of many kinds; for the user they mean the same
        lines = [line for line in str(error).splitlines() if line.strip()]
        reason = lines[0][:200] if lines else "no reason given"
        raise Refusal(f"push={name}: the hub did not take it ({type(error).__name__}: {reason}){hint}") from None
