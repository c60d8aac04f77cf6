"""On-policy distillation: what a teacher reads, which teachers there are, and that a run learns from one."""

import shutil
from dataclasses import replace

import pytest
import torch
from conftest import metrics_of, run_program
from safetensors.torch import load_file

import lora
import train
from envs import EnvironmentFailed
from models import load_model, load_tokenizer
from models.weights import TINY
from rl import teacher
from rl.batch import make_batch
from rl.config.fields import Config
from rl.config.words import parse, resolve
from rl.records import Episode
from rl.tasks import make_env

SMALL = ["episodes=8", "batch_size=8", "epochs=1", "max_new_tokens=4", "eval_episodes=0", "textcraft.max_turns=1"]
SMALL += ["threads=1", "algo=opd"]


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """Return the folder of an adapter of rank 8 that changes the base's output."""
    folder, model = tmp_path_factory.mktemp("teacher"), load_model("tiny")
    lora.inject(model, r=8, targets="attention")
    torch.manual_seed(1)
    for name, p in model.named_parameters():
        if name.endswith(".B"):
            torch.nn.init.normal_(p, std=0.2)
    lora.save_adapter(model, folder, "tiny")
    return folder


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("tiny")


def settings(*words: str) -> Config:
    return resolve(dict(word.split("=", 1) for word in ("algo=opd", "opd.privileged=true", *words)))


def played(cfg: Config, tokenizer, seed: int) -> Episode:
    """Return an episode of two turns of a task, with replies that nobody sampled."""
    episode = Episode(cfg.env, seed, 0)
    episode.append(tokenizer.prompt(make_env(cfg, cfg.env).reset(seed, "train")))
    for reply in ("look", "go"):
        ids = tokenizer.reply(reply)
        episode.append_turn(ids, [-1.0] * len(ids), "stop")
        episode.append(tokenizer.follow_up(ids[-1], [{"role": "user", "content": "nothing"}]))
    return episode


def with_solutions(episodes: list[Episode], tokenizer, cfg: Config) -> list[Episode]:
    return teacher.with_solutions(episodes, teacher.solved_prompts(episodes, tokenizer, cfg))


def test_a_task_whose_expert_fails_is_left_out(tokenizer, monkeypatch):
    cfg = settings("env=textcraft")
    episodes = [played(cfg, tokenizer, seed) for seed in (3, 4)]
    batch = make_batch(episodes)
    model = load_model("tiny")
    whole = teacher.Teacher(model, None, tokenizer, 10**6).graded(batch, cfg, 2048)
    monkeypatch.setattr(teacher, "prompts_of", failing_for(4, teacher.prompts_of))
    part = teacher.Teacher(model, None, tokenizer, 10**6).graded(batch, cfg, 2048)
    assert [e.seed for e in whole.episodes] == [3, 4] and [e.seed for e in part.episodes] == [3]
    assert torch.equal(part.teacher_logprobs_N, whole.teacher_logprobs_N[whole.episode_N == 0])
    monkeypatch.setattr(teacher, "prompts_of", failing_for(3, teacher.prompts_of))
    with pytest.raises(EnvironmentFailed, match="disk"):
        teacher.solved_prompts(episodes, tokenizer, cfg)


def failing_for(seed: int, right):
    def call(name, one, *others):
        if one == seed:
            raise EnvironmentFailed("disk")
        return right(name, one, *others)

    return call


def test_a_privileged_teacher_reads_the_solution_and_then_the_episode(tokenizer):
    cfg = settings("env=textcraft")
    episodes = [played(cfg, tokenizer, seed) for seed in (3, 4)]
    for episode, read in zip(episodes, with_solutions(episodes, tokenizer, cfg), strict=True):
        start, moved = episode.turns[0].start, len(read.ids_T) - len(episode.ids_T)
        assert moved > 0 and read.ids_T[start + moved :] == episode.ids_T[start:]
        assert read.action_mask_T == [0] * moved + episode.action_mask_T
        env, replies, over = make_env(cfg, "textcraft"), [], False
        env.reset(episode.seed, "train")
        while not over:
            replies.append(env.oracle())
            over = env.step(replies[-1]).terminated
        assert teacher.SOLUTION + "\n\n".join(replies) in tokenizer.show(read.ids_T[: start + moved])


def test_of_qa_the_solution_is_the_answer(tokenizer, tmp_path):
    rows = "".join(f'{{"question": "say {i}", "answer": "the{i}"}}\n' for i in range(30))
    (tmp_path / "rows.jsonl").write_text(rows)
    cfg = settings("env=qa", f"qa.data={tmp_path}/rows.jsonl")
    episode = played(cfg, tokenizer, 0)
    read = with_solutions([episode], tokenizer, cfg)[0]
    asked = tokenizer.show(episode.ids_T).split("say ")[1].split("<")[0].strip()
    assert f"the{asked}" in tokenizer.show(read.ids_T) and f"the{asked}" not in tokenizer.show(episode.ids_T)


def test_an_episode_of_another_task_is_refused(tokenizer):
    cfg = settings("env=textcraft")
    other = replace(played(cfg, tokenizer, 3), seed=4)
    with pytest.raises(ValueError, match="an episode of textcraft does not begin as its task does"):
        with_solutions([other], tokenizer, cfg)


def test_a_checkpoint_with_another_tokenizer_is_refused(tmp_path):
    shutil.copytree(TINY, tmp_path / "other")
    path = tmp_path / "other" / "tokenizer.json"
    merge = '"merges"'
    assert merge in path.read_text()
    text = path.read_text()
    at = text.index("[", text.index(merge)) + 1
    end = text.index("]", at) + 1 if text[at:].lstrip().startswith("[") else text.index(",", at)
    path.write_text(text[:at] + text[end:].lstrip(",\n "))
    cfg = settings(f"opd.teacher={tmp_path}/other")
    with pytest.raises(ValueError, match="its tokenizer is not that of tiny"):
        teacher.load(cfg, load_tokenizer("tiny"), load_model("tiny"))


def test_a_folder_without_a_teacher_is_refused(tmp_path):
    status, _, err = run_program("train.py", *SMALL, f"opd.teacher={tmp_path}", f"out={tmp_path}/run")
    assert status and err.endswith("neither an adapter, a run with one, nor a checkpoint on this machine\n")


@pytest.mark.parametrize("kind", ["adapter", "checkpoint"])
def test_a_policy_that_is_its_teacher_learns_nothing(adapter, tmp_path, kind):
    """The adapter that starts teaches, or a copy of the base a policy that is still the base: grades are exactly 0."""
    if kind == "adapter":
        words, before = [f"resume_from={adapter}", f"opd.teacher={adapter}"], adapter
    else:
        words, before = ["lora.r=4", f"opd.teacher={shutil.copytree(TINY, tmp_path / 'base')}"], None
    train.main(parse([*SMALL, *words, f"out={tmp_path}/run"]))
    (record,) = [r for r in metrics_of(tmp_path / "run") if "teacher_kl" in r]
    assert record["teacher_kl"] == 0 == record["grad_norm"] and record["exact"] == "yes"
    after = load_file(tmp_path / "run" / "epoch_1" / "adapter_model.safetensors")
    earlier = load_file(before / "adapter_model.safetensors") if before else {}
    assert all(
        torch.equal(earlier[key], tensor) if before else "A" in key or not tensor.any() for key, tensor in after.items()
    )


def test_the_policy_that_teaches_itself_reads_its_own_adapter_and_no_teacher_trains(adapter, tokenizer):
    """Not the base's words: the grades of an adapter that changes them are those of this adapter."""
    cfg, graded = settings("env=textcraft", f"opd.teacher={adapter}"), {}
    for name in ("policy", str(adapter), ""):
        model, cfg = load_model("tiny"), settings("env=textcraft", f"opd.teacher={name}")
        graded_by = teacher.load(cfg, tokenizer, model)
        lora.load_adapter(model, adapter)
        assert all(p.requires_grad == (".default." in path) for path, p in model.named_parameters())
        batch = make_batch([played(cfg, tokenizer, 3)])
        graded[name] = graded_by.graded(batch, cfg, cfg.micro_tokens).teacher_logprobs_N
    assert torch.equal(graded["policy"], graded[str(adapter)])
    assert not torch.allclose(graded["policy"], graded[""], atol=0.1)


@pytest.mark.parametrize("top_k", [0, 3])
def test_grades_are_at_the_temperature_of_the_run(top_k, adapter, tokenizer):
    cfg = settings(
        "env=textcraft", f"opd.teacher={adapter}", f"opd.top_k={top_k}", "opd.privileged=false", "temperature=0.5"
    )
    model, alone = load_model("tiny"), load_model("tiny")
    graded_by = teacher.load(cfg, tokenizer, model)
    lora.inject(model, r=2)
    lora.load_adapter(alone, adapter)
    episode = played(cfg, tokenizer, 3)
    batch = graded_by.graded(make_batch([episode]), cfg, cfg.micro_tokens)
    logits_TV = alone(torch.tensor([episode.ids_T]))[0] @ alone.lm_head.weight.T
    where = torch.tensor(episode.action_mask_T, dtype=torch.bool)
    logprobs_NV = (logits_TV / 0.5).log_softmax(-1).detach()[where.nonzero()[:, 0] - 1]
    wanted_N = logprobs_NV.gather(1, torch.tensor(episode.ids_T)[where][:, None])[:, 0]
    torch.testing.assert_close(batch.teacher_logprobs_N, wanted_N, atol=1e-4, rtol=1e-4)
    if top_k:
        torch.testing.assert_close(batch.teacher_choices_N, logprobs_NV.topk(top_k).values, atol=1e-4, rtol=1e-4)


@pytest.mark.all_only
def test_passes_over_an_epoch_move_towards_the_teacher_also_after_a_resume(adapter, tmp_path):
    """The mean of eight passes over the same episodes is below the first pass."""
    words = [
        *SMALL,
        "lora.r=4",
        "lr=2e-3",
        "schedule=constant",
        "strict=false",
        "opd.top_k=4",
        f"opd.teacher={adapter}",
    ]
    train.main(parse([*words, f"out={tmp_path}/once"]))
    train.main(parse([*words, "opd.epochs=8", f"out={tmp_path}/often"]))
    train.main(parse([f"resume={tmp_path}/once", "epochs=2"]))
    once, often = ([r["choices_kl"] for r in metrics_of(tmp_path / n) if "choices_kl" in r] for n in ("once", "often"))
    assert len(once) == 2 and 0 < often[0] < 0.9 * once[0], (once, often)
