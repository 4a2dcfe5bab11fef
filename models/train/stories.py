"""Small stories: a cast, an opening, one of several plots, an ending.

Every sentence has several wordings, so that no two stories are alike while each stays simple. Knows nothing of how a
story is asked for (see conversations.py) or cut into tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from models.train import words
from models.train.words import a, cap


@dataclass(frozen=True)
class Wish:
    """What somebody asked the story to be about; None leaves the choice to the writer."""

    kind: str | None = None
    name: str | None = None
    thing: str | None = None
    friend: str | None = None


@dataclass(frozen=True)
class Cast:
    """Who and what one story is about. `he`, `him`, `his` hold the hero's own pronouns."""

    kind: str
    trait: str
    name: str
    he: str
    him: str
    his: str
    friend_kind: str
    friend: str
    place: str
    goal: str
    colour: str
    item: str
    food: str

    @property
    def thing(self) -> str:
        return f"{self.colour} {self.item}"


def draw_cast(rng: Random, wish: Wish) -> Cast:
    """Fill in whatever the wish leaves open."""
    kinds = words.ANIMALS if rng.random() < 0.65 else words.PEOPLE
    kind = wish.kind or rng.choice(kinds)
    female = _is_female(rng, kind, wish.name)
    listed = words.GIRLS if female else words.BOYS
    name = wish.name or (words.made_up_name(rng) if rng.random() < 0.25 else rng.choice(listed))
    friend_kind = rng.choice([k for k in words.ANIMALS + words.PEOPLE if k != kind])
    friend = wish.friend or rng.choice([n for n in words.GIRLS + words.BOYS if n != name])
    he, him, his = ("she", "her", "her") if female else ("he", "him", "his")
    colour, item = wish.thing.split(" ", 1) if wish.thing else (rng.choice(words.COLOURS), rng.choice(words.THINGS))
    where, goal, food = rng.choice(words.PLACES), rng.choice(words.GOALS), rng.choice(words.FOODS)
    trait = rng.choice(words.TRAITS)
    return Cast(kind, trait, name, he, him, his, friend_kind, friend, where, goal, colour, item, food)


def _is_female(rng: Random, kind: str, name: str | None) -> bool:
    if kind in words.SHE_KINDS or kind in words.HE_KINDS:
        return kind in words.SHE_KINDS
    if name in words.GIRLS or name in words.BOYS:
        return name in words.GIRLS
    return rng.random() < 0.5


def story(rng: Random, wish: Wish | None = None) -> str:
    """One story of about 60 to 150 words, in one paragraph, ending with a full stop."""
    cast = draw_cast(rng, wish or Wish())
    plot = rng.choice(PLOTS)
    sentences = [_opening(rng, cast), _habit(rng, cast), *plot(rng, cast), _ending(rng, cast)]
    return " ".join(sentence for sentence in sentences if sentence)


def _opening(rng: Random, c: Cast) -> str:
    start = rng.choice(("Once upon a time", "Once upon a time", "Once upon a time", "Long ago", "Once", "One summer"))
    who = a(f"{c.trait} {c.kind}")
    return rng.choice(
        (
            f"{start}, there was {who} named {c.name}. {cap(c.he)} lived {c.place}.",
            f"{start}, {who} named {c.name} lived {c.place}.",
            f"{start}, {c.place}, there lived {who}. {cap(c.his)} name was {c.name}.",
            f"{start}, there lived {who} called {c.name} {c.place}.",
        )
    )


def _habit(rng: Random, c: Cast) -> str:
    return rng.choice(
        (
            f"{c.name} loved to play near {c.goal}.",
            f"Every morning {c.name} ate {c.food} and looked at the sky.",
            f"{c.name} liked {c.food} more than anything else.",
            f"Every day {c.he} walked to {c.goal} and back.",
            f"{cap(c.he)} had a good friend, {a(c.friend_kind)} named {c.friend}.",
            "",
        )
    )


def _ending(rng: Random, c: Cast) -> str:
    return rng.choice(
        (
            f"From that day on, {c.name} and {c.friend} were the best of friends.",
            f"{c.name} went home and slept very well that night.",
            "They all laughed and lived happily ever after.",
            f"And {c.name} never forgot that day.",
            f"That evening they ate {c.food} together and watched the stars.",
            f"{c.name} was happy, and so was {c.friend}.",
            f'"What a good day," said {c.name}, and {c.he} smiled. The end.',
        )
    )


def lost(rng: Random, c: Cast) -> list[str]:
    """Something is lost, and a friend helps to find it."""
    where = rng.choice(("under a bush", "behind a big stone", "in the tall grass", "on top of a tree", "in the water"))
    return [
        rng.choice(
            (
                f"One day {c.name} lost {c.his} {c.thing}.",
                f"One morning {c.name} could not find {c.his} {c.thing}.",
            )
        ),
        rng.choice(
            (
                f"{cap(c.he)} looked everywhere, but it was gone.",
                f"{cap(c.he)} was very sad and began to cry.",
                f"{cap(c.he)} looked in the house and in the garden, but the {c.item} was not there.",
            )
        ),
        rng.choice(
            (
                f'{cap(a(c.friend_kind))} named {c.friend} came by and asked, "Why are you sad?"',
                f'Then {c.friend} the {c.friend_kind} came by and asked, "What is wrong?"',
            )
        ),
        f'"I lost my {c.thing}," said {c.name}.',
        rng.choice(('"I will help you," said', '"Do not worry, we will find it," said')) + f" {c.friend}.",
        rng.choice(
            (
                f"They walked to {c.goal} and looked {where}. There was the {c.thing}!",
                f"Together they went to {c.goal}. At last they saw the {c.item} {where}.",
            )
        ),
        rng.choice((f'"Thank you, {c.friend}!" said {c.name}.', f"{c.name} gave {c.friend} a big hug.")),
    ]


def found(rng: Random, c: Cast) -> list[str]:
    """Something is found and given back to its owner."""
    return [
        rng.choice(
            (
                f"One day {c.name} went to {c.goal} and found {a(c.thing)}.",
                f"One day, on the way to {c.goal}, {c.name} saw {a(c.thing)} on the ground.",
            )
        ),
        rng.choice((f'"Whose {c.item} is this?" {c.he} asked.', f"It was very pretty, and {c.he} wanted to keep it.")),
        rng.choice(
            (
                f"Then {c.he} met {a(c.friend_kind)} named {c.friend}, who was crying.",
                f"Soon {c.he} met {c.friend} the {c.friend_kind}, who looked very sad.",
            )
        ),
        f'"I lost my {c.thing}," said {c.friend}.',
        rng.choice(
            (
                f'"Here it is," said {c.name}, and gave it back.',
                f'{c.name} thought for a moment. "Here it is," {c.he} said.',
            )
        ),
        rng.choice(
            (
                f"{c.friend} was so happy that they shared some {c.food}.",
                f'"You are very kind," said {c.friend}. "Let us eat some {c.food}."',
            )
        ),
    ]


def storm(rng: Random, c: Cast) -> list[str]:
    """Bad weather, and shelter with somebody new."""
    weather = rng.choice(("rain", "snow", "wind"))
    verb = {"rain": "rain very hard", "snow": "snow", "wind": "blow very hard"}[weather]
    subject = "the wind" if weather == "wind" else "it"
    return [
        f"One day {c.name} walked to {c.goal}. Suddenly {subject} began to {verb}.",
        rng.choice((f"{c.name} was cold and afraid.", f"{cap(c.he)} could not see the way home.")),
        rng.choice(
            (
                f"Then {c.he} saw a light. It was the house of {c.friend} the {c.friend_kind}.",
                f"Then {c.he} heard a voice. It was {a(c.friend_kind)} named {c.friend}.",
            )
        ),
        rng.choice((f'"Come in, it is warm here," said {c.friend}.', f'"Come with me," said {c.friend}.')),
        rng.choice(
            (
                f"They sat by the fire and ate {c.food}.",
                f"{c.friend} gave {c.him} a warm blanket and some {c.food}.",
            )
        ),
        rng.choice(("Soon the sun came out again.", f"In the morning the {weather} was gone.")),
    ]


def journey(rng: Random, c: Cast) -> list[str]:
    """A long way, a danger, a friend, a sight."""
    danger = rng.choice(("a deep river", "a dark cave", "a steep hill", "a thick wood"))
    sight = rng.choice(("a rainbow", "the wide blue sea", "a thousand stars", f"a field of {c.colour} flowers"))
    return [
        rng.choice((f"One day {c.name} wanted to see the world.", f"{c.name} dreamed of a long journey.")),
        f"{cap(c.he)} took {a(c.thing)} and some {c.food}, and walked to {c.goal}.",
        f"On the way there was {danger}, and {c.name} was afraid.",
        f'"Do not be afraid," said {c.friend} the {c.friend_kind}. "We can go together."',
        rng.choice(("Step by step they went on.", f"{c.name} took a deep breath and followed {c.friend}.")),
        f"On the other side they saw {sight}.",
        rng.choice((f'"It is beautiful," said {c.name}.', f"{c.name} had never been so happy.")),
    ]


def sharing(rng: Random, c: Cast) -> list[str]:
    """Food is shared, and kindness comes back."""
    return [
        f"One day {c.name} had a big basket of {c.food}.",
        rng.choice((f"{cap(c.he)} did not want to share.", f"{cap(c.he)} wanted to eat it all alone.")),
        f"Then {a(c.friend_kind)} named {c.friend} came to {c.goal}.",
        f'"I am so hungry," said {c.friend}. "May I have some {c.food}?"',
        rng.choice((f'{c.name} thought about it. "Yes, you may," {c.he} said.', f'"Of course," said {c.name}.')),
        rng.choice((f"They sat down near {c.goal} and ate.", "They ate and talked until the sun went down.")),
        f"The next day {c.friend} came back and gave {c.name} {a(c.thing)}.",
        rng.choice((f'"A friend who shares is a good friend," said {c.friend}.', f"{c.name} was very surprised.")),
    ]


def learning(rng: Random, c: Cast) -> list[str]:
    """Trying again until it works."""
    skill, verb = rng.choice(
        (
            ("swim", "swam"),
            ("sing", "sang"),
            ("dance", "danced"),
            ("draw", "drew"),
            ("climb", "climbed"),
            ("cook", "cooked"),
        )
    )
    return [
        rng.choice((f"{c.name} wanted to learn to {skill}.", f"More than anything {c.name} wanted to {skill}.")),
        rng.choice((f"{cap(c.he)} tried and tried, but it was too hard.", f"At first {c.he} was not good at it.")),
        f'"I can not do it," said {c.name}.',
        f'{c.friend} the {c.friend_kind} said, "Try once more. I will {skill} with you."',
        rng.choice((f"Every day they met near {c.goal}.", f"So they practised every day near {c.goal}.")),
        f"After a week {c.name} {verb} better than anyone.",
        rng.choice(
            (f"Everybody clapped, and {c.friend} was proud of {c.him}.", f"{c.friend} gave {c.him} {a(c.thing)}.")
        ),
    ]


def rescue(rng: Random, c: Cast) -> list[str]:
    """A call for help."""
    trouble = rng.choice(("had fallen into a hole", "was stuck in the mud", "could not get down from a tree"))
    return [
        f'One day, near {c.goal}, {c.name} heard a cry. "Help! Help!"',
        f"It was {a(c.friend_kind)} named {c.friend}, who {trouble}.",
        rng.choice((f"{c.name} ran as fast as {c.he} could.", f"{c.name} did not know what to do.")),
        rng.choice((f"Then {c.he} had an idea.", f'"Wait, I will help you," said {c.name}.')),
        rng.choice(
            (f"{cap(c.he)} found a long rope and pulled and pulled.", f"{cap(c.he)} called all {c.his} friends.")
        ),
        rng.choice((f"At last {c.friend} was free.", f"Together they saved {c.friend}.")),
        f'"You saved me," said {c.friend}, and gave {c.him} {a(c.thing)}.',
    ]


def contest(rng: Random, c: Cast) -> list[str]:
    """A race that ends in friendship."""
    return [
        f'One day {c.friend} the {c.friend_kind} said, "I am faster than you."',
        f'"Let us race to {c.goal}," said {c.name}.',
        rng.choice((f"They ran and ran. {c.friend} was far ahead.", "They both ran as fast as the wind.")),
        rng.choice((f"But {c.friend} fell over a stone.", f"But then {c.friend} hurt a foot and had to stop.")),
        rng.choice((f"{c.name} stopped and helped {c.friend} up.", f"{c.name} turned around and came back to help.")),
        f"They walked to {c.goal} side by side.",
        rng.choice((f"So both of them won the {c.thing}.", f'"We both won," said {c.name}, and they ate {c.food}.')),
    ]


PLOTS: tuple[Callable[[Random, Cast], list[str]], ...] = (
    lost,
    found,
    storm,
    journey,
    sharing,
    learning,
    rescue,
    contest,
)
