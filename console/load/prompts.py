"""What simulated users say, and the random prompts of the bench. The texts were written for Slotdeck."""

from __future__ import annotations

import random

NAMES = (  # noqa: SIM905 - a list of quoted words would be hard to read
    "laptop phone tablet office kitchen garage attic studio hallway workshop basement library "
    "bedroom balcony desktop notebook printer garden terrace pantry lounge nursery closet cellar"
).split()
"""Names of simulated users. Beyond 24 users a number is appended."""

OPENERS = (
    "What should I check first when my home server gets slow in the evening?",
    "Explain the difference between RAID 1 and a backup to someone who thinks they are the same.",
    "Write a friendly email to my landlord about the dripping kitchen tap.",
    "I have eggs, spinach, half an onion and some feta. What can I cook in twenty minutes?",
    "Plan a weekly cleaning routine for a flat with two adults and one cat.",
    "How do I find out which device in my network uses the most bandwidth?",
    "Give me five ideas for a birthday party for a seven year old on a rainy day.",
    "Why does my sourdough come out flat, and what should I change first?",
    "Draft a short agenda for a thirty minute meeting about moving our files to the new storage.",
    "Explain what a reverse proxy does and when I need one at home.",
    "My indoor tomatoes have yellow leaves at the bottom. What are the likely reasons?",
    "Summarise the benefits and drawbacks of working from home for our team page.",
    "What is a sensible way to name the machines in a small network?",
    "Help me write a polite reply to a customer who asks for a refund after sixty days.",
    "How much salt goes into the water for pasta, and does it really matter?",
    "Explain how DNS works with an example from everyday life.",
    "I want to run ten kilometres in three months. I can run two today. Make a plan.",
    "Which questions should I ask when I look at a used car?",
    "Describe how to prune an old apple tree in late winter, step by step.",
    "Write a packing list for a week of camping with two children.",
    "What are good habits for passwords in a family of five?",
    "Explain compound interest to a twelve year old with a small example.",
    "Our office plants keep dying. Which three plants survive almost anything?",
    "How do I move a virtual machine to another host without losing data?",
    "Write a short toast for a colleague who retires after thirty years.",
    "What does a UPS do for a home server, and how large should it be?",
    "Suggest a simple budget for a household with a net income of three thousand a month.",
    "My bicycle chain slips in the highest gear. How do I find the cause?",
    "Explain why the sky is blue and the sunset is red.",
    "Draft a notice for the hallway: the heating will be off on Thursday from nine to noon.",
    "What is the best way to descale a coffee machine, and how often?",
    "Compare heat pumps and gas boilers for an old house in a cold region.",
    "Give me a gentle ten minute stretching routine for people who sit all day.",
    "How do I explain to my parents how to recognise a phishing mail?",
    "Write a product description for a handmade oak cutting board.",
    "What should a good bug report contain?",
    "Tell me the story of a lighthouse keeper who adopts a stray dog.",
    "How can I keep a small flat cool in a heat wave without air conditioning?",
    "Make a checklist for closing the office on Friday evening.",
    "What is the difference between a switch, a router and an access point?",
)

FOLLOW_UPS = (
    "Can you make that shorter?",
    "Why is that?",
    "Give me an example.",
    "What would you do first?",
    "And what if that does not help?",
    "Please put it into a list of steps.",
    "How long does that take?",
    "What does it cost, roughly?",
    "Is there a simpler way?",
    "Explain the second point in more detail.",
    "What are common mistakes there?",
    "Rewrite it in a friendlier tone.",
    "How do I know that it worked?",
    "Which tools do I need for that?",
    "Does that also hold for a beginner?",
    "What else should I keep in mind?",
)

WORDS = (  # noqa: SIM905
    "anchor apple arrow autumn badge baker balance bamboo barrel basket beacon berry bicycle blanket border bottle "
    "branch bridge bronze brush bucket butter button cabin cactus camera candle canyon carpet castle cedar chapel "
    "cherry circle cloud clover coast cobalt coffee copper coral corner cotton cradle crystal curtain daisy dawn "
    "delta desert diamond dolphin dragon drawer drift eagle echo elbow ember engine falcon feather fence ferry "
    "fiddle field flame flute forest fossil fountain frost galaxy garlic garnet gate ginger glacier globe granite "
    "grape gravel guitar hammer harbor harvest hazel helmet heron hollow honey horizon island ivory jacket jasmine "
    "jungle kettle keyboard ladder lagoon lantern lattice laurel lemon lever linen lizard lobster lumber magnet "
    "mantle maple marble market meadow melon mirror mitten monsoon mortar mountain mustard needle nickel notion "
    "oasis ocean olive onyx orchard otter oyster paddle palace paper parade parrot pasture pebble pepper piano "
    "pigeon pillow planet plaster plum pocket pollen pony prairie pumpkin puzzle quarry quartz quilt rabbit radish "
    "raft raven ribbon ridge river rocket rose saddle saffron salmon sandal sapphire satchel saucer shadow shelter "
    "shovel signal silver sparrow spiral spruce stable statue stone summit sunset tailor teapot temple thistle "
    "thunder timber tunnel turtle umbrella valley velvet violet walnut whistle willow window winter wolf yarrow"
).split()

QUESTION = "Write a long story in which all of these words appear one after another."


def user_name(index: int) -> str:
    """The name of simulated user ``index``, counted from 0; every user has another one."""
    turn, place = divmod(index, len(NAMES))
    return NAMES[place] if turn == 0 else f"{NAMES[place]}-{turn + 1}"


def bench_prompt(index: int, seed: int, words: int = 150) -> str:
    """A prompt of exactly ``words`` words.

    The first two words differ for each ``index`` below 40,000, so that no two prompts share a prefix that a cache could
    reuse.
    """
    rng = random.Random(f"{seed}/{index}")
    order = random.Random(seed).sample(WORDS, len(WORDS))
    start = [order[index % len(order)], order[(index // len(order)) % len(order)]]
    filling = rng.choices(WORDS, k=words - len(start) - len(QUESTION.split()))
    return " ".join([*start, *filling, QUESTION])
