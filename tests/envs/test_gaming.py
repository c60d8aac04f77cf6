"""What the cheapest replies earn: success of agents that do not do the task, kept near the true floor.

docs/environments.md has the table; `python tests/envs/test_gaming.py` prints it.
"""

import json
import re
import sys
from collections.abc import Callable
from math import sqrt
from pathlib import Path

import pytest

import envs
from envs.tau_retail.customer import MOST_GUESSES, says

Agent = Callable[[list[dict], int], str]  # (messages and observations so far, turn) -> a reply
MOST_TURNS = 12  # of a cheap agent, which repeats itself


def always(*replies: str) -> Agent:
    """Return an agent that gives these replies in turn, the last one again and again."""
    return lambda seen, turn: replies[min(turn, len(replies) - 1)]


def echo(seen: list[dict], turn: int) -> str:
    """Repeat what was shown last."""
    return seen[-1]["content"]


def sat_of(value: str) -> Agent:
    return always(" ".join(f"x{i}={value}" for i in range(1, 30)))


def output_as_input(seen: list[dict], turn: int) -> str:
    """Return an output that abd shows, as the input."""
    return seen[-1]["content"].rpartition("Output:\n")[2].strip("`\n ")


def print_example(seen: list[dict], turn: int) -> str:
    """Return a program that prints the example's output, whatever its input."""
    found = re.search(r"Example output:\n(.*?)\n\n|prints (.*)", seen[-1]["content"], re.DOTALL)
    return f"print({(found[1] or found[2]) if found else ''!r})"


def table_of(seen: list[dict], turn: int) -> str:
    """Return a table's name in a prompt of db_bench."""
    return re.search(r"^(\w+): ", "\n".join(m["content"] for m in seen), re.MULTILINE)[1]


def everything(seen: list[dict], turn: int) -> str:
    """Select a whole table and answer with all its rows."""
    return f"SELECT * FROM {table_of(seen, turn)}" if not turn else f"answer {seen[-1]['content']}"


def numbers_of_prompt(seen: list[dict], turn: int) -> str:
    """Plan all sums of the prompt's numbers; the last one counts."""
    found = re.findall(r"\d+", seen[0]["content"].partition("\n")[2])
    return "\n".join(f"{found[0]}+{number}" for number in found[1:8]) if len(found) > 1 else "1+1"


def product_of_prompt(seen: list[dict], turn: int) -> str:
    """Multiply all of the prompt's numbers."""
    return "*".join(re.findall(r"\d+", seen[0]["content"].partition("\n")[2]))


def first_product(seen: list[dict], turn: int) -> str:
    """Search for the words of the goal, open the first product and buy it."""
    words = re.search(r"Instruction: \[SEP\] (.*?) \[SEP\]", seen[0]["content"])
    found = re.findall(r"\bB[0-9A-Z]{9}\b", seen[-1]["content"])
    return (f"search[{words[1] if words else ''}]", f"click[{found[0] if found else ''}]", "click[Buy Now]")[
        min(turn, 2)
    ]


def rounds(seen: list[dict], turn: int) -> str:
    """Walk three steps, turn left, and so on."""
    return "turn left" if turn % 4 == 3 else "move forward"


def list_numbers(seen: list[dict], turn: int) -> str:
    """Write every whole number up to 1,200 to the customer."""
    return "respond " + " ".join(map(str, range(400 * (turn % 3), 400 * (turn % 3) + 400)))


SHORT = {"prompt": "short"}
# environment -> its options, and the replies that were tried: {name: agent}
CHEAP: dict[str, tuple[dict, dict[str, Agent]]] = {
    "textcraft": (SHORT, {"nothing": always(""), "inventory": always("inventory"), "echo": echo}),
    "alfworld": (SHORT, {"nothing": always(""), "look": always("look"), "echo": echo}),
    "babyai": (
        SHORT,
        {
            "nothing": always(""),
            "forward": always("move forward"),
            "toggle": always("toggle"),
            "pick up": always("pickup"),
            "rounds": rounds,
        },
    ),
    "webshop": (
        SHORT,
        {
            "nothing": always(""),
            "buy": always("click[Buy Now]"),
            "first": first_product,
        },
    ),
    "sciworld": (SHORT, {"nothing": always(""), "wait": always("wait"), "look": always("look around")}),
    "sat": ({}, {"all true": sat_of("True"), "all false": sat_of("False"), "UNSAT": always("UNSAT"), "echo": echo}),
    "abd": (
        SHORT,
        {
            "nothing": always(""),
            "zero": always("0"),
            "echo": echo,
            "output": output_as_input,
            "ones": always("1\n1\n1"),
        },
    ),
    "ded": (
        {},
        {
            "nothing": always(""),
            "empty": always("```python\n```"),
            "example": print_example,
            "echo": echo,
            "input": always("print(input())"),
        },
    ),
    "os_interaction": (
        SHORT,
        {
            "finish": always("finish"),
            "all files": always("ls -R /", "finish"),
            "echo": echo,
            "true": always("alias false=true; exit 0", "finish"),
            "open all": always("chmod -R 777 / ; touch /tmp/a", "finish"),
        },
    ),
    "db_bench": (
        SHORT,
        {
            "nothing": always("answer []"),
            "everything": everything,
            "one": always("answer 1"),
            "zero": always("answer [(0,)]"),
            "echo": echo,
        },
    ),
    "tau_retail": (
        SHORT,
        {
            "nothing": always("respond "),
            "yes": always("respond Is that all right? Yes or no?"),
            "refuse": always("respond I am sorry, I cannot do that."),
            "hand over": always("transfer_to_human_agents x"),
            "every number": list_numbers,
        },
    ),
    "planner": (
        {"prompt": "short", "worker": "rules"},
        {"nothing": always(""), "numbers": numbers_of_prompt, "product": product_of_prompt, "constant": always("5*2")},
    ),
    "sums": (
        {},
        {
            "nothing": always(""),
            "echo": echo,
            "constant": always("69"),
            "every number": always(" ".join(map(str, range(100)))),
        },
    ),
}


def success(name: str, options: dict, agent: Agent, episodes: int) -> float:
    """Return the share of an environment's tasks that an agent solves."""
    env, won = envs.make(name, **options), 0
    for seed in range(episodes):
        seen = env.reset(seed, "test" if seed % 2 else "train")
        for turn in range(MOST_TURNS):
            step = env.step(agent(seen, turn))
            if step.terminated or step.truncated:
                break
            seen = [*seen, {"role": "user", "content": step.observation}]
        won += step.info["success"]
    return won / episodes


def table(episodes: int) -> dict[str, dict[str, float]]:
    """Return {environment: {reply: success}}."""
    return {
        name: {reply: success(name, options, agent, episodes) for reply, agent in agents.items()}
        for name, (options, agents) in CHEAP.items()
    }


def documented() -> dict[str, float]:
    """Return the highest success of each environment's row in docs/environments.md."""
    text = (Path(__file__).parents[2] / "docs/environments.md").read_text().partition("\n## ")[0]
    cells = re.findall(r"^\| \[`(\w+)`\].*\| ([\d.]+) % \|$", text, re.M)
    return {name: float(best) / 100 for name, best in cells}


def test_each_environment_has_a_row():
    assert [*documented()] == [*CHEAP] == [name for name in envs.NAMES if name not in envs.WITHOUT_TASKS]


@pytest.mark.all_only
@pytest.mark.parametrize("name", CHEAP)
def test_cheap_replies_earn_no_more_than_documented(name):
    """Within three deviations of a sample of 40 tasks."""
    best = documented()[name]
    bound = best + 3 * sqrt(max(best, 0.01) * (1 - best) / 40)
    options, agents = CHEAP[name]
    for reply, agent in agents.items():
        assert success(name, options, agent, 40) <= bound, reply


QUESTIONS = [{"question": f"What is {i} + 2?", "answer": i + 2} for i in range(100)]


@pytest.mark.parametrize(
    "reply",
    [
        " ".join(map(str, range(200))),
        ", ".join(map(str, range(200))),
        "".join(f"\\boxed{{{i}}}" for i in range(200)),
        "\\boxed{" + ",".join(map(str, range(200))) + "}",
        "\n".join(f"#### {i}" for i in range(200)),
        " or ".join(map(str, range(200))),
        "".join(map(str, range(200))),
        "echo",
        "",
    ],
    ids=range(9),
)
@pytest.mark.parametrize("match", ["text", "number"])
def test_a_list_of_all_answers_wins_one_question_at_most(reply, match, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    env, won = envs.make("qa", data=str(path), match=match, splits="own"), 0
    for seed in range(100):
        asked = env.reset(seed)[-1]["content"]
        won += env.step(asked if reply == "echo" else reply).reward
    assert won <= 1


def test_a_retail_customer_ignores_lists_of_numbers():
    """Tasks that only ask for numbers: guessing all wins none, the expert wins all."""
    asked = 0
    for seed in range(60):
        env = envs.make("tau_retail", prompt="short")
        env.reset(seed)
        if env.errand.calls or not env.errand.outputs:
            continue
        asked += 1
        for number in range(MOST_TURNS):
            step = env.step(
                "respond "
                + " ".join(map(str, range(number * 100, number * 100 + 100)))
                + " "
                + " ".join(env.errand.outputs)
            )
        assert env.unsaid == set(env.errand.outputs) and not step.info["success"]
        env.reset(seed)
        while not (step.terminated or step.truncated) or not env.turns:
            step = env.step(env.oracle())
        assert step.info["success"] and len(env.customer.guesses) <= MOST_GUESSES
    assert asked > 5 and says("It is 15", "15") and not says("It is 15", "5")


if __name__ == "__main__":
    for name, row in table(int(sys.argv[1]) if len(sys.argv) > 1 else 100).items():
        print(name, json.dumps(row), flush=True)
