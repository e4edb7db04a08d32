"""The demo's task: a customer asks a shop clerk for the price, the stock or the shelf of one item.

The clerk has one tool for each; the facts are drawn anew for every task, so that nothing but the right tool call
gives the answer. Everything is a pure function of the seed: the runner, the scripted teacher and the tests compute
the same tasks without talking to each other. Held-out tasks name items that training never names, in six phrasings
a kind of which two are new as well.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any

SYSTEM = "You are a shop clerk. Call one tool, then answer with its result only."


@dataclass(frozen=True)
class Kind:
    """One kind of question, the tool that answers it, and its phrasings: four for training, then two unseen.

    Item names are quoted: then the name in the question and in the call are the same tokens, and a small model copies
    names that it was never trained on. Unquoted, a fifth of the held-out names were misspelt, whatever the tool.
    Most phrasings share a word with a tool, as questions to real tools do: what tells the kinds apart is then learned
    before chance has driven a tool out.
    """

    name: str
    tool: str
    phrasings: tuple[str, ...]


KINDS = (
    Kind(
        "price",
        "get_price",
        (
            'What is the price of the "{item}"?',
            'Tell me the price of the "{item}".',
            'What does the "{item}" cost?',
            'How much is the "{item}"?',
            'What price do you charge for the "{item}"?',
            'How expensive is the "{item}"?',
        ),
    ),
    Kind(
        "stock",
        "get_stock",
        (
            'What is the stock of the "{item}"?',
            'Tell me the number of the "{item}" in stock.',
            'How many of the "{item}" are in stock?',
            'How many of the "{item}" do you have?',
            'What quantity of the "{item}" is in stock?',
            'How many pieces of the "{item}" remain?',
        ),
    ),
    Kind(
        "shelf",
        "get_shelf",
        (
            'Which shelf holds the "{item}"?',
            'Tell me the shelf of the "{item}".',
            'On which shelf is the "{item}"?',
            'Where is the "{item}"?',
            'What shelf has the "{item}"?',
            'Where can I find the "{item}"?',
        ),
    ),
)
TOOLS = tuple(kind.tool for kind in KINDS)
TRAIN_PHRASINGS = 4

TRAIN_WORDS = (
    "lamp chair table mirror clock vase carpet pillow blanket kettle teapot pan bowl plate cup fork spoon knife tray "
    "basket bucket broom sponge towel soap candle hammer wrench drill saw ladder rope nail screw hinge lock key bell "
    "wheel pump tent rug desk crate stool bench drum flute guitar violin kite ball bat net glove helmet scarf hat coat "
    "shirt belt boot sock ring watch purse wallet pencil eraser stapler"
)
TRAIN_ITEMS = tuple(TRAIN_WORDS.split())
HELDOUT_WORDS = (
    "sofa couch curtain cushion mattress toaster blender oven grill jug mug bottle jar lid funnel whisk peeler mop "
    "duster brush bin shovel rake hose axe chisel pliers clamp tape glue paint roller bulb plug cable battery radio "
    "camera phone piano trumpet puzzle doll robot skate racket whistle jacket sweater skirt umbrella ruler"
)
HELDOUT_ITEMS = tuple(HELDOUT_WORDS.split())


@dataclass(frozen=True)
class ShopTask:
    """One question and the facts of its shop; what the agent factory and the reward are given as payload."""

    prompt: str
    item: str
    kind: str
    tool: str
    """The tool that answers it."""
    facts: dict[str, str]
    """Tool name -> what it returns for this item."""
    answer: str
    """``facts[tool]``."""
    phrasing: int

    def payload(self) -> dict[str, Any]:
        return asdict(self)


def draw_facts(rng: random.Random) -> dict[str, str]:
    """Random facts of one item: two digits each, in a form of its own for each tool."""
    return {
        "get_price": f"${rng.randint(10, 99)}",
        "get_stock": f"{rng.randint(10, 99)}",
        "get_shelf": f"{rng.choice('ABCDEFGH')}{rng.randint(10, 99)}",
    }


def make_task(rng: random.Random, kind: Kind, item: str, phrasing: int) -> ShopTask:
    facts = draw_facts(rng)
    prompt = kind.phrasings[phrasing].format(item=item)
    return ShopTask(prompt, item, kind.name, kind.tool, facts, facts[kind.tool], phrasing)


class Deck:
    """Deals the cards in random order, all of them before any comes again."""

    def __init__(self, rng: random.Random, cards: tuple[Any, ...]) -> None:
        self._rng, self._cards = rng, cards
        self._left: list[Any] = []

    def draw(self) -> Any:
        if not self._left:
            self._left = list(self._cards)
            self._rng.shuffle(self._left)
        return self._left.pop()


def train_tasks(seed: int, batches: int, batch_size: int) -> list[ShopTask]:
    """``batches`` x ``batch_size`` training tasks, each batch with equally many of each kind, in random order.

    A batch in which one kind is missing lets the policy drift to one tool, after which every group has equal rewards
    and no gradient: hence the strata. ``batch_size`` must be a multiple of 3.
    """
    if batch_size % len(KINDS) != 0:
        raise ValueError(f"batch_size {batch_size} is not a multiple of the {len(KINDS)} kinds")
    rng = random.Random(f"train {seed}")
    items = Deck(rng, TRAIN_ITEMS)
    phrasings = {kind: Deck(rng, tuple(range(TRAIN_PHRASINGS))) for kind in KINDS}
    tasks: list[ShopTask] = []
    for _ in range(batches):
        batch = [
            make_task(rng, kind, items.draw(), phrasings[kind].draw())
            for kind in KINDS
            for _ in range(batch_size // len(KINDS))
        ]
        rng.shuffle(batch)
        tasks += batch
    return tasks


def heldout_tasks(seed: int, count: int) -> list[ShopTask]:
    """``count`` held-out tasks: kinds and all six phrasings in turn, items that training never names.

    The same for the evaluation before and after. Three kinds x six phrasings = 18: a multiple of it is balanced.
    """
    rng = random.Random(f"held out {seed}")
    items = Deck(rng, HELDOUT_ITEMS)
    tasks = [
        make_task(rng, kind, items.draw(), (index // len(KINDS)) % len(kind.phrasings))
        for index in range(count)
        for kind in (KINDS[index % len(KINDS)],)
    ]
    rng.shuffle(tasks)
    return tasks


def teacher_tasks(seed: int, count: int) -> list[tuple[ShopTask, str]]:
    """``count`` questions with the tool that the scripted teacher calls: *not* the right one, but each in turn.

    For every phrasing of every kind the three tools come equally often, so that the traffic shows the form of a
    call and says nothing of which tool to choose. Questions do not repeat: the teacher finds its tool by the text.
    Balanced if ``count`` is a multiple of 36 (3 kinds x 4 phrasings x 3 tools).
    """
    rng = random.Random(f"teacher {seed}")
    items = Deck(rng, TRAIN_ITEMS)
    cells = [
        (kind, phrasing, tool) for tool in TOOLS for kind in KINDS for phrasing in range(TRAIN_PHRASINGS)
    ]
    pairs: list[tuple[ShopTask, str]] = []
    seen: set[str] = set()
    for index in range(count):
        kind, phrasing, tool = cells[index % len(cells)]
        task = make_task(rng, kind, items.draw(), phrasing)
        while task.prompt in seen:
            task = make_task(rng, kind, items.draw(), phrasing)
        seen.add(task.prompt)
        pairs.append((task, tool))
    rng.shuffle(pairs)
    return pairs


def blind_success(tasks: list[ShopTask]) -> float:
    """Success of the best policy that ignores its question: always the same tool, and all else done right."""
    return max(sum(task.tool == tool for task in tasks) for tool in TOOLS) / len(tasks)
