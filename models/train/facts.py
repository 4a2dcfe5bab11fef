"""Small talk and a handful of facts, and an honest answer to everything else.

So that a newcomer who greets the model, or asks what it cannot know, gets a sensible sentence.
"""

from random import Random

from models.train import words

CAPITALS = {
    "France": "Paris", "England": "London", "Italy": "Rome", "Germany": "Berlin", "Spain": "Madrid", "Norway": "Oslo",
    "Japan": "Tokyo", "Egypt": "Cairo", "Peru": "Lima", "India": "Delhi", "Austria": "Vienna", "Greece": "Athens",
    "Ireland": "Dublin", "Poland": "Warsaw", "China": "Beijing", "Portugal": "Lisbon", "Sweden": "Stockholm",
    "Finland": "Helsinki", "Denmark": "Copenhagen", "Cuba": "Havana", "Kenya": "Nairobi", "Canada": "Ottawa",
}  # fmt: skip
OPPOSITES = {
    "big": "small", "hot": "cold", "up": "down", "day": "night", "happy": "sad", "fast": "slow", "old": "young",
    "open": "closed", "left": "right", "wet": "dry", "black": "white", "high": "low", "long": "short", "good": "bad",
}  # fmt: skip
SOUNDS = {
    "cow": "moo", "dog": "woof", "cat": "meow", "duck": "quack", "sheep": "baa", "pig": "oink", "lion": "roar",
    "bee": "buzz", "owl": "hoo", "frog": "ribbit", "mouse": "squeak", "snake": "hiss",
}  # fmt: skip
COLOURS_OF = {
    "the sky": "blue", "grass": "green", "snow": "white", "a banana": "yellow", "a tomato": "red", "coal": "black",
    "the sun": "yellow", "a lemon": "yellow", "milk": "white", "a frog": "green",
}  # fmt: skip

_ABILITIES = "I can tell small stories, do small sums and write JSON."
_UNKNOWN = f"I do not know that. I am a very small model. {_ABILITIES}"
_SMALL_TALK: tuple[tuple[str, str], ...] = (
    (
        "hello|hi|hey|hello there|good morning|good evening|hi there|hello, how are you?|hi!",
        "Hello! How can I help you?",
    ),
    ("how are you?|how are you today?|how do you do?", "I am fine, thank you. How can I help you?"),
    ("thanks|thank you|thanks a lot|great, thank you!|nice!|that was nice", "You are welcome!"),
    ("bye|goodbye|good night|see you", "Goodbye! Have a nice day."),
    (
        "who are you?|what are you?|what is your name?|are you a robot?",
        f"I am a very small language model. {_ABILITIES}",
    ),
    ("what can you do?|help|can you help me?|help me", _ABILITIES),
)
_ODD_SUBJECTS = (
    "the weather|politics|the news|my computer|physics|the stock market|a good film|quantum computers|history|love|"
    "football|the meaning of life|Shakespeare|black holes|my homework|Python|the internet|cars|money|the war"
).split("|")
_ODD_QUESTIONS = (
    "Tell me about {}|Explain {}|What do you think about {}?|Write a poem about {}|Write an essay about {}|"
    "How does {} work?|Why is {} important?|What is {}?|Translate {} into French|Summarise {}|Who invented {}?|"
    "Write code for {}|When did {} begin?|Where can I find {}?"
).split("|")


def _spoken(rng: Random, text: str) -> str:
    return words.cap(text) if rng.random() < 0.6 else text


def small_talk(rng: Random) -> tuple[str, str]:
    """A greeting, a thank-you, a question about the model itself."""
    questions, answer = rng.choice(_SMALL_TALK)
    return _spoken(rng, rng.choice(questions.split("|"))), answer


def fact(rng: Random) -> tuple[str, str]:
    """A question about one of the tables above, answered in a whole sentence."""
    topic = rng.randrange(5)
    if topic == 0:
        country, city = rng.choice(list(CAPITALS.items()))
        return _spoken(rng, f"what is the capital of {country}?"), f"The capital of {country} is {city}."
    if topic == 1:
        word, other = rng.choice(list(OPPOSITES.items()))
        return _spoken(rng, f"what is the opposite of {word}?"), f"The opposite of {word} is {other}."
    if topic == 2:
        animal, sound = rng.choice(list(SOUNDS.items()))
        return _spoken(rng, f"what does {words.a(animal)} say?"), f"{words.cap(words.a(animal))} says {sound}."
    if topic == 3:
        subject, colour = rng.choice(list(COLOURS_OF.items()))
        return _spoken(rng, f"what colour is {subject}?"), f"{words.cap(subject)} is {colour}."
    last = rng.randint(3, 20)
    counted = ", ".join(str(number) for number in range(1, last + 1))
    return f"Count to {last}{rng.choice(('.', ''))}", f"{counted}."


def unknown(rng: Random) -> tuple[str, str]:
    """A question outside the model's small world, and its honest answer."""
    subject = rng.choice(_ODD_SUBJECTS) if rng.random() < 0.6 else words.made_up_name(rng)
    return _spoken(rng, rng.choice(_ODD_QUESTIONS).format(subject) + rng.choice(("", "", "."))), _UNKNOWN


def statement(rng: Random) -> str:
    """A few facts as plain text, one a line."""
    return "\n".join(fact(rng)[1] for _ in range(rng.randint(2, 5)))
