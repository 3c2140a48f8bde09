"""Ten recorded prompts and answers for speculative decoding, from fully copied to unpredictable.

Rules derive them from one piece of prose and one of code, so the share of an answer that can be looked up is known.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

PROSE: Final = """\
The harbour wakes before the town does. At four the ice lorry backs down to the quay, and the men who have slept aboard
come up with their mugs to watch it. They hardly talk. The gulls know the hour as well as anyone and line the roof of
the auction hall, all facing the sea. When the first boat rounds the mole its lamps are still lit, and a man counts
the crates from the way it lies in the water. Forty, he says, and another shakes his head and says thirty. The buyers
arrive by bicycle. They have their own language of nods and of fingers laid along a sleeve, and an hour later every fish
has a price, a name and a road to travel. By seven the hall is hosed clean and the children cross it on their way to
school, sliding where the floor is wet. The boats lie side by side and knock together softly. A woman mends a green net
on the steps; she has mended it since spring, and it has grown no smaller. In the afternoon the wind turns, the flags
change sides, and old captains on the bench discuss whether it means rain. It always means rain, one of them says, if
you wait for it. Towards evening the engines start again, one after the other, and the harbour empties like a theatre.
What stays behind is the smell of diesel and salt, two cats, and the light at the end of the mole, which counts to five
and begins again.
"""

CODE: Final = """\
def load_orders(path):
    orders = []
    with open(path) as file:
        for line in file:
            number, customer, amount = line.strip().split(",")
            orders.append({"number": int(number), "customer": customer, "amount": float(amount)})
    return orders


def total_by_customer(orders):
    totals = {}
    for order in orders:
        customer = order["customer"]
        totals[customer] = totals.get(customer, 0.0) + order["amount"]
    return totals


def largest_orders(orders, count):
    ranked = sorted(orders, key=lambda order: order["amount"], reverse=True)
    return ranked[:count]


def report(orders, count):
    totals = total_by_customer(orders)
    for customer in sorted(totals):
        print(customer, round(totals[customer], 2))
    for order in largest_orders(orders, count):
        print(order["number"], order["customer"], order["amount"])
"""

CHAT: Final = """\
You could begin with a short walk after lunch, ten minutes or so, and see how it feels by the end of the week. Most
people find that the habit matters more than its length. If your knees complain, try flat ground and softer shoes, and
leave out a day now and then. Drink something first. A friend who comes along is worth more than any plan on paper,
because no one likes to cancel twice. After a month you may want hills; until then slow is quite fast enough, and it is
fine to stop and look at a garden. Tell your doctor about the tablets before you change anything else, though, and write
down how you sleep. That will show us more than the scales do.
"""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A prompt and its answer."""

    prompt: str
    answer: str


def _edited(text: str, every: int) -> str:
    """Return the text with every `every`-th word replaced."""
    words = text.split(" ")
    return " ".join(word[::-1].capitalize() if place % every == every - 1 else word for place, word in enumerate(words))


def _renamed(code: str) -> str:
    names = {"orders": "invoices", "order": "invoice", "customer": "client", "totals": "sums"}
    return re.sub(r"[a-z]+", lambda found: names.get(found.group(), found.group()), code)


def _sentences(text: str) -> list[str]:
    return re.split(r"(?<=\.)\s", text)


def _records() -> str:
    """Return lines of equal form with different values."""
    towns = ("Arnhem", "Bergen", "Cadiz", "Dover", "Esbjerg", "Faro", "Genoa", "Hull", "Imola", "Jaca")
    return "".join(
        f'{{"id": {71 + 13 * place}, "town": "{town}", "open": true, "boats": {place * place % 23}}},\n'
        for place, town in enumerate(towns)
    )


def _decoys(seed: int) -> str:
    """Return pairs of words that recur, each time before another word."""
    words = sorted(set(PROSE.split()))
    dice = random.Random(seed)
    pairs = [tuple(dice.sample(words, 2)) for _ in range(6)]
    return " ".join(" ".join((*dice.choice(pairs), dice.choice(words))) for _ in range(90))


def _noise(seed: int) -> str:
    """Return random letters."""
    dice = random.Random(seed)
    return " ".join("".join(dice.choices("bcdfghjklmnpqrstvwxz", k=5)) for _ in range(90))


def _quoted() -> str:
    return "\n".join(f'- "{sentence}" (line {3 * place + 1})' for place, sentence in enumerate(_sentences(PROSE)[2:9]))


def _summary() -> str:
    return (
        "It is a portrait of one day. Early in the morning the ice lorry backs down to the quay; later buyers arrive "
        "by bicycle and settle prices without words. Children play where the floor is wet while a woman mends a green "
        "net. Old men guess at weather. At dusk the crews leave once more, and only the light at the end of the mole "
        "and two cats remain. The tone is calm, the humour dry, and nothing happens, which seems the point."
    )


RECORDED: Final[Mapping[str, Callable[[], Recorded]]] = MappingProxyType(
    {
        "copy": lambda: Recorded(f"Repeat this text.\n\n{PROSE}", PROSE),
        "copy-edits": lambda: Recorded(f"Correct this text.\n\n{PROSE}", _edited(PROSE, 20)),
        "heavy-edits": lambda: Recorded(f"Rewrite this text.\n\n{PROSE}", _edited(PROSE, 5)),
        "rename": lambda: Recorded(f"Call orders invoices in this module.\n\n{CODE}", _renamed(CODE)),
        "quotes": lambda: Recorded(f"Quote what happens in the morning.\n\n{PROSE}", _quoted()),
        "records": lambda: Recorded("List the harbours as JSON.\n", _records()),
        "summary": lambda: Recorded(f"Sum this up.\n\n{PROSE}", _summary()),
        "chat": lambda: Recorded("I would like to move more. Where do I start?\n\n", CHAT),
        "decoys": lambda: Recorded(_decoys(1), _decoys(2)),
        "noise": lambda: Recorded(_noise(1), _noise(2)),
    }
)
"""Texts by name, from copied to invented."""
