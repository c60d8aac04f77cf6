"""rl.explain: the update that it shows is the run's own, bit for bit, and the episodes' shares of it add up."""

import hashlib
import io
import re
import shutil
from pathlib import Path

import pytest
import torch
from conftest import run_program

import train
from models import load_tokenizer
from rl import explain, ppo
from rl.batch import forward, select
from rl.config.words import parse, resolve
from rl.optimizer import parameters_of

WORDS = "algo=ppo ppo.epochs=2 epochs=3 episodes=8 batch_size=4 max_turns=2 max_new_tokens=8 reward.rule=shaped"
WORDS += " temperature=1.5 eval_episodes=0 threads=1 products=plain max_sampled_tokens=20000 schedule=linear"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("explain") / "run"
    train.main(parse([*WORDS.split(), f"out={folder}"]))
    return folder


def contents(run: Path) -> dict[str, str]:
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(run.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def found(run) -> explain.Explained:
    before = contents(run)
    found, _, _ = explain.explain(run, 3)
    assert contents(run) == before, "the run's folder stays as it was"
    return found


@pytest.mark.all_only
def test_the_update_is_the_run_s_own(found):
    assert found.exact is True
    assert torch.equal(found.before_N, found.batch.old_logprobs_N), "the weights are those that sampled"
    assert (found.after_N != found.before_N).any() and found.stats["optimizer_steps"] == 4


def test_epoch_without_checkpoints_is_repeated_from_the_start(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("checkpoint-*"))
    found, _, _ = explain.explain(copy, 2)
    assert found.exact is True and torch.equal(found.before_N, found.batch.old_logprobs_N)


def test_a_terminal_shows_how_far_it_is(run, tmp_path, monkeypatch):
    """The bars are on stderr: stdout may be piped."""
    copy, terminal = tmp_path / "run", io.StringIO()
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("checkpoint-*"))
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", terminal)
    explain.explain(copy, 2)
    assert "earlier epochs:   0%|" in terminal.getvalue() and "gradients of episodes:   0%|" in terminal.getvalue()


def test_an_epoch_without_anything_to_learn_is_shown(tmp_path):
    words = "algo=grpo grpo.drop_equal=true grpo.group_size=2 env=sat sat.n=3 epochs=1 episodes=4 batch_size=4"
    words += " max_new_tokens=1 eval_episodes=0 threads=1 strict=false"
    train.main(parse([*words.split(), f"out={tmp_path}/run"]))
    found, _, _ = explain.explain(tmp_path / "run", 1)
    assert len(found.before_N) == len(found.share_B) == 0 and found.exact is True


def test_the_shares_of_the_gradient_add_up_and_are_not_all_alike(found):
    assert found.share_B.sum().item() == pytest.approx(1, abs=2e-6)
    assert (found.norm_B > 0).any() and found.share_B.std() > 0


def test_norms_and_shares_are_those_of_naive_gradients(run, monkeypatch):
    """An episode's gradient beside that of the whole batch, also where gradients are computed a second time."""
    shares_of = explain.gradient_shares

    def naive(state, batch, cfg):
        policy = parameters_of(state.optimizer, policy=True)

        def gradient_P(part):
            micro = forward(part, state.model, cfg.temperature, state.critic)
            return torch.cat([g.flatten() for g in torch.autograd.grad(ppo.loss(micro, cfg.algorithm)[0], policy)])

        whole_P, found = gradient_P(batch), shares_of(state, batch, cfg)
        gradients = [gradient_P(select(batch, [b])) for b in range(len(batch.episodes))]
        close = {"rtol": 1e-3, "atol": 1e-4}
        torch.testing.assert_close(found[1], torch.stack([g.norm() for g in gradients]), **close)
        torch.testing.assert_close(
            found[2], torch.stack([g @ whole_P / (whole_P @ whole_P) for g in gradients]), **close
        )
        monkeypatch.setattr(explain, "KEPT", 0)
        for kept, again in zip(found, shares_of(state, batch, cfg), strict=True):
            torch.testing.assert_close(again, kept, **close)
        checked.append(len(gradients))
        return found

    checked: list[int] = []
    monkeypatch.setattr(explain, "gradient_shares", naive)
    explain.explain(run, 3)
    assert checked == [8]


def test_a_change_of_the_loss_is_not_the_run_s_own_update(run, monkeypatch):
    own = ppo.advantages
    monkeypatch.setattr(ppo, "advantages", lambda batch, cfg: own(batch, cfg.__class__(gamma=0.5)))
    assert explain.explain(run, 3)[0].exact is False


@pytest.mark.parametrize("by", ["change", "probability", "advantage"])
def test_the_tokens_are_those_that_moved_most(by, run, found):
    cfg, tokenizer = resolve({"resume": str(run)}), load_tokenizer("tiny")
    lines = explain.report(found, tokenizer, run, 3, cfg, explain.Keys(by=by, tokens=3))
    rows = [line for line in lines if re.search(r"turn \d+: ", line)]
    change_N = found.after_N - found.before_N
    values = {"change": change_N, "probability": found.after_N.exp() - found.before_N.exp()}
    order_N = values.get(by, found.batch.advantages_N)
    for row, n in ((rows[0], int(order_N.argmax())), (rows[-3], int(order_N.argmin()))):
        change, ratio, *_, advantage = [float(x.rstrip("%")) for x in re.findall(r"[-+]?\d+\.\d+%?", row)[:5]]
        assert ratio == pytest.approx(torch.tensor(change).exp().item(), abs=1e-3)
        if by == "change":
            assert change == pytest.approx(change_N[n].item(), abs=1e-4)
        if by != "probability":
            assert advantage == pytest.approx(found.batch.advantages_N[n].item(), abs=1e-3)
        said = re.search(r"episode (\d+), turn (\d+): .*\[(.*)\]", row)
        e = found.batch.episodes[int(said[1])]
        turn = e.turns[int(said[2]) - 1]
        assert said[3] in repr(tokenizer.show(e.ids_T[turn.start : turn.stop]))
    assert lines[1] == "the update is the run's own, bit for bit"


def test_the_command_prints_it_and_refuses_wrong_words(run, found, tmp_path, monkeypatch, capsys):
    cfg = resolve({"resume": str(run)})
    monkeypatch.setattr(explain, "explain", lambda *_: (found, load_tokenizer("tiny"), cfg))
    explain.main([str(run), "3", "tokens=2"])
    assert "episodes that moved the gradient most" in capsys.readouterr().out
    for words, message in [
        ([str(run)], "give a run's folder and an epoch: python -m rl.explain runs/x 3"),
        ([str(run), "9"], f"epoch 9: {run} has epochs 1 to 3"),
        ([str(run), "0"], f"epoch 0: {run} has epochs 1 to 3"),
        ([str(tmp_path), "1"], "no episodes.jsonl, so this is not the folder of a run that played episodes"),
        ([str(run), "3", "by=ratio"], "by=ratio is not one of change, probability, advantage"),
    ]:
        status, out, err = run_program("rl/explain.py", *words)
        assert status == 2 and message in err and err.count("\n") == 1 and not out, words


def test_help_explains_every_key(capsys):
    with pytest.raises(SystemExit):
        explain.main(["--help"])
    keys = [line for line in capsys.readouterr().out.splitlines() if re.match(r"  \w+=", line)]
    assert len(keys) == 3 and not [line for line in keys if re.search(r"= *\S* +: ", line)]
