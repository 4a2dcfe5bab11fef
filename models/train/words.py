"""The vocabulary of the generated text: names, heroes, places, things, moods.

Only word lists and the helpers that choose from them. Knows nothing of plots, prompts or tokens.
"""

from random import Random

GIRLS = (
    "Ann Lily Mia Sara Emma Rosa Nina Ella Zoe Ruby Ivy Alice Clara Eva Lucy Maya Nora Olga Tina Wendy Amy Bella Daisy "
    "Grace Hanna Jane Kate Luna Mary Sophie"
).split()
BOYS = (
    "Tom Ben Sam Max Leo Tim Jack Finn Hugo Oscar Peter Adam Carl Dan Eric Felix Henry Ivan Jim Karl Lucas Mark Noah "
    "Otto Paul Ray Simon Theo Victor Bob"
).split()
ANIMALS = (
    "fox rabbit bear mouse cat dog bird owl frog duck horse cow pig sheep goat lion tiger elephant monkey turtle snail "
    "hedgehog squirrel deer wolf penguin whale dolphin fish crab bee ant butterfly spider snake dragon unicorn donkey "
    "kitten puppy hen goose swan otter beaver badger mole bat parrot camel zebra giraffe kangaroo koala panda robot"
).split()
PEOPLE = (
    "boy girl king queen prince princess farmer baker sailor teacher painter gardener wizard knight doctor pirate "
    "giant fairy witch shepherd miller dancer singer astronaut clown"
).split()
HE_KINDS = frozenset("boy king prince wizard knight pirate".split())
SHE_KINDS = frozenset("girl queen princess fairy witch hen cow".split())
TRAITS = (
    "little small young kind brave clever happy shy curious quiet cheerful gentle funny friendly tiny lonely old big "
    "lazy busy hungry proud wise"
).split()
PLACES = (
    "in a small village|in a green forest|by the sea|near a quiet lake|on a high hill|in a little house|on a farm|"
    "in a big city|under an old tree|by a river|in a deep valley|on a small island|in a sunny garden|in an old castle|"
    "at the edge of the wood|in a cave by the mountain|in a yellow tent|on the moon"
).split("|")
GOALS = (
    "the forest|the river|the market|the lake|the garden|the hill|the beach|the old mill|the mountain|the bridge|"
    "the park|the village|the meadow|the castle"
).split("|")
COLOURS = "red blue green yellow white black golden silver purple orange pink brown".split()
THINGS = (
    "ball kite hat book boat lamp box key bell drum stone ring cup flute map coat shoe basket blanket bottle button "
    "candle clock coin crown feather flag flower lantern mirror scarf shell spoon star toy train umbrella wagon"
).split()
FOODS = (
    "apples pears bread honey cheese cakes berries nuts soup cookies plums carrots pancakes cherries grapes "
    "noodles tomatoes beans"
).split()
COUNTED = "apples pears eggs coins books shells stones cookies balls flowers stars pens cups cakes marbles nuts".split()
CITIES = "Paris London Rome Berlin Madrid Oslo Tokyo Cairo Lima Delhi Vienna Prague Athens Dublin Warsaw".split()
JOBS = "teacher baker doctor farmer painter singer driver nurse pilot writer cook gardener".split()
HOBBIES = "music chess books tea swimming cycling cooking painting dancing football hiking singing games".split()

_ONSETS = "B D F G K L M N P R S T V Z Br Ch Dr Fl Gr Kr Pl Sh St Tr".split()
_VOWELS = "a e i o u ee oo ai".split()
_CODAS = "n l r m s x k t nd lla ra no by ly ro mo".split()


def a(phrase: str) -> str:
    """The phrase with its indefinite article: 'an owl', 'a small owl', 'a unicorn'."""
    takes_an = phrase[0].lower() in "aeiou" and not phrase.lower().startswith("uni")
    return f"{'an' if takes_an else 'a'} {phrase}"


def made_up_name(rng: Random) -> str:
    """A name that is in no list, so that the model learns to copy names rather than to recall them."""
    middle = rng.choice(_CODAS)[0] + rng.choice(_VOWELS)[0] if rng.random() < 0.3 else ""
    return rng.choice(_ONSETS) + rng.choice(_VOWELS) + middle + rng.choice(_CODAS)


def any_name(rng: Random) -> str:
    """Mostly a listed name, sometimes a made-up one."""
    return made_up_name(rng) if rng.random() < 0.25 else rng.choice(GIRLS + BOYS)


def cap(text: str) -> str:
    """The text with its first letter in upper case, the rest untouched."""
    return text[:1].upper() + text[1:]
